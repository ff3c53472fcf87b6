"""The names of tensors in Hugging Face folders differ by what was saved; here they become those of `Checkpoint`."""

from __future__ import annotations

import logging
from collections.abc import Collection

from tokenloom.errors import ModelError

__all__ = ["EMBEDDINGS", "HEAD", "canonical_names"]

EMBEDDINGS = "model.embed_tokens.weight"
HEAD = "lm_head."

_PROBE = "embed_tokens."  # with `weight`, or packed as a quantization method names its parts
_PLAIN, _BARE = "model.", ""
_COMPOSITE = ("model.language_model.", "language_model.model.", "language_model.")
"""The text part of a model that also takes images or sound, newer and older."""
_BARE_PARTS = ("embed_tokens.", "layers.", "norm.")
_BELOW = ".weight."
_RECOMPUTED = ".rotary_emb.inv_freq"  # old files store this buffer; it follows from the config

_log = logging.getLogger(__name__)


def canonical_names(stored: Collection[str], origin: str) -> dict[str, str]:
    """{name as `Checkpoint` has it: name in the file}, in the order of `stored`.

    A folder was saved from the whole model (`model.layers...`), from its inner part (`layers...`), or from a model
    with other senses (`model.language_model.layers...`), whose other parts are left out.

    Args:
        stored: every name in the files.
        origin: the folder, for messages.

    Raises:
        ModelError: no embeddings are there, or two sets of names.
    """
    prefixes = [
        prefix
        for prefix in (_PLAIN, *_COMPOSITE, _BARE)
        if any(name.startswith(f"{prefix}{_PROBE}") for name in stored)
    ]
    if not prefixes:
        near = ", ".join(sorted(stored)[:3])
        raise ModelError(f"{origin} has no tensor {EMBEDDINGS!r}; it holds {near}, ...")
    if len(prefixes) > 1:
        both = " and ".join(repr(f"{prefix}{_PROBE}weight") for prefix in prefixes)
        raise ModelError(f"{origin} holds {both}; it is not clear which of them is the model")
    names: dict[str, str] = {}
    left_out = 0
    for name in stored:
        canonical = _canonical(name, prefixes[0])
        if canonical is None:
            left_out += 1
        elif not canonical.endswith(_RECOMPUTED):
            if canonical in names:
                raise ModelError(f"{origin} holds {canonical!r} twice, as {names[canonical]!r} and {name!r}")
            names[canonical] = name
    if left_out:
        _log.info("%s: %d tensors of its parts other than text are left out", origin, left_out)
    return _side_by_side(names)


def _side_by_side(names: dict[str, str]) -> dict[str, str]:
    """Tensors below a weight (bitsandbytes: x.weight.absmax) become its neighbours, x.weight_absmax, and the weight
    itself, which then is no matrix, x.weight_codes."""
    above = {name.partition(_BELOW)[0] for name in names if _BELOW in name}
    if not above:
        return names
    flat: dict[str, str] = {}
    for name, stored in names.items():
        part, is_below, rest = name.partition(_BELOW)
        if is_below:
            flat[f"{part}.weight_{rest.replace('.', '_')}"] = stored
        else:
            owner, _, last = name.rpartition(".")
            flat[f"{owner}.weight_codes" if last == "weight" and owner in above else name] = stored
    return flat


def _canonical(name: str, prefix: str) -> str | None:
    if prefix == _PLAIN:
        return name
    if prefix == _BARE:
        return f"{_PLAIN}{name}" if name.startswith(_BARE_PARTS) else name
    if name.startswith(HEAD):
        return name
    head = name.removeprefix("language_model.")
    if head.startswith(HEAD):
        return head
    return f"{_PLAIN}{name.removeprefix(prefix)}" if name.startswith(prefix) else None
