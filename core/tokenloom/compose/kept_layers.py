"""Layers of earlier compositions: sweeps compose the same files dozens of times, and Hydra reads them each time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from hydra.core.config_loader import ConfigLoader

from tokenloom.compose.layers import Layers, stack
from tokenloom.compose.overrides import Setting
from tokenloom.plugins import ConfigFolder

__all__ = ["kept_or_stacked"]

_MOST_KEPT = 64
_ENVIRONMENT = "oc.env"
"""How a file names a variable of the environment; in a defaults list one may choose an option."""

_FileState = tuple[str, int, int, int]
"""Path, inode, time of the last change in ns, size in bytes: changes whenever the content does."""

_Key = tuple[tuple[tuple[str, str], ...], tuple[_FileState, ...], tuple[Setting, ...]]
"""Hydra's search path, as (provider, path), the files, the choices."""

_kept: OrderedDict[_Key, Layers] = OrderedDict()
_lock = threading.Lock()


def kept_or_stacked(loader: ConfigLoader, folders: Sequence[ConfigFolder], chosen: Sequence[Setting]) -> Layers:
    """What `stack` gives: a copy of what it gave before, if no file has changed since, and none asks the environment.

    Raises:
        ConfigError: as `stack` does.
    """
    sources = tuple((source.provider, source.path) for source in loader.get_sources())
    files = [path for folder in folders for path in sorted(folder.path.rglob("*.yaml"))]
    key = (sources, tuple(map(_state, files)), tuple(chosen))
    with _lock:
        held = _kept.get(key)
        if held is not None:
            _kept.move_to_end(key)
    if held is not None:
        return held.copy()
    made = stack(loader, folders, chosen)
    if any(map(_asks_environment, files)):
        return made
    with _lock:
        _kept[key] = made.copy()
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return made


def _asks_environment(path: Path) -> bool:
    try:
        return _ENVIRONMENT in path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # a link to nothing; what `stack` needs, it has read
        return False


def _state(path: Path) -> _FileState:
    try:
        state = path.stat()
    except FileNotFoundError:  # since it was listed, or a link to nothing
        return str(path), 0, 0, 0
    return str(path), state.st_ino, state.st_mtime_ns, state.st_size
