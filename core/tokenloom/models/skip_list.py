"""Which layers a quantizer must leave alone: skip lists, matched by full dotted name.

One place for the rule, so that no plugin has its own. An entry means a layer and everything below it: "lm_head",
"model.layers.1.mlp" (never layers.11), "re:.*down_proj". The leading "model." may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, final

from tokenloom.errors import ConfigError, ModelError, did_you_mean
from tokenloom.interfaces.quant import LayerSpec

__all__ = ["SkipList", "checkpoint_skip_entries", "part_names"]

_ROOT = "model."
_REGEX = "re:"
_HEAD = "lm_head"
_CHECKPOINT_KEYS = ("modules_to_not_convert", "ignore", "ignored_layers")


def part_names(spec: LayerSpec) -> tuple[str, ...]:
    """Full names of the layer's shards, as the checkpoint has them: q_proj, k_proj and v_proj of a fused one."""
    parent, _, own = spec.name.rpartition(".")
    return tuple(
        spec.name if shard.name == own else f"{parent}.{shard.name}" if parent else shard.name for shard in spec.shards
    )


def checkpoint_skip_entries(quantization: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The layers that the checkpoint's own quantization settings leave alone; () without such settings.

    Raises:
        ModelError: a list of names was expected and something else is there.
    """
    entries: list[str] = []
    for key in _CHECKPOINT_KEYS:
        value = (quantization or {}).get(key) or []
        if not isinstance(value, list) or not all(isinstance(entry, str) and entry for entry in value):
            raise ModelError(f"quantization_config: {key!r} must be a list of layer names, got {value!r}")
        entries += value
    return tuple(dict.fromkeys(entries))


@final
class SkipList:
    """Answers whether a layer is skipped, and remembers which of the user's entries named a layer at all.

    Args:
        from_checkpoint: entries of the checkpoint; they may name parts of a larger model that is not loaded.
        from_user: entries of the config; one that names no layer is an error.
    """

    def __init__(self, from_checkpoint: tuple[str, ...] = (), from_user: tuple[str, ...] = ()) -> None:
        self._entries = (*from_checkpoint, *from_user)
        self._unused = dict.fromkeys(from_user)
        self._seen: list[str] = []

    def names(self, spec: LayerSpec) -> bool:
        """Whether an entry names this layer, which is then left alone.

        Raises:
            ModelError: entries name some shards of a fused layer and not the others.
        """
        parts = part_names(spec)
        self._seen += parts
        if self._has(spec.name) or (spec.tied and self._has(_HEAD)):
            return True
        hits = [self._has(part) for part in parts]
        if any(hits) and not all(hits):
            left_out = [part for part, hit in zip(parts, hits) if not hit]
            raise ModelError(
                f"the skip list names {parts[hits.index(True)]} but not {', '.join(left_out)}; they are stored "
                f"together as {spec.name}: name all of them or none"
            )
        return all(hits)

    def check_used(self) -> None:
        """Called when every layer was asked about.

        Raises:
            ConfigError: an entry of the user names no layer.
        """
        for entry in self._unused:
            raise ConfigError(
                f"the skip list names {entry!r}, but no layer has that name or begins with it;"
                f" use full names, e.g. {self._seen[-1]!r}.{did_you_mean(entry, self._seen)}"
            )

    def _has(self, name: str) -> bool:
        matching = [entry for entry in self._entries if _matches(entry, name)]
        for entry in matching:
            self._unused.pop(entry, None)
        return bool(matching)


def _matches(entry: str, name: str) -> bool:
    if entry.startswith(_REGEX):
        return re.match(entry.removeprefix(_REGEX), name) is not None
    return any(name == full or name.startswith(f"{full}.") for full in (entry, _ROOT + entry))
