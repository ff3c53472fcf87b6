"""A private Hydra config loader that leaves the Hydra of the surrounding program untouched.

Hydra keeps one global instance, version and job name per process. They are set aside while a loader of ours is in use,
so that composing works inside a user's `@hydra.main` and from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import final

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase

from tokenloom.plugins import ConfigFolder

__all__ = ["hydra_loader"]

_VERSION_BASE = "1.3"
_lock = threading.RLock()
_extra_folders: ContextVar[tuple[ConfigFolder, ...]] = ContextVar("tokenloom_extra_config_folders", default=())


@final
class TokenloomSearchPath(SearchPathPlugin):
    """Appends the folders of plugin packages and of --config-dir; does nothing in a Hydra session of somebody else."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in _extra_folders.get():
            search_path.append(provider=folder.owner, path=f"file://{folder.path}")


@contextmanager
def hydra_loader(folders: Sequence[ConfigFolder]) -> Iterator[ConfigLoader]:
    """Lends a config loader over `folders`, the first of which holds the root config. Valid inside the `with` only."""
    with _lock:
        Plugins.instance().register(TokenloomSearchPath)
        version, job = VersionBase.instance(), JobRuntime.instance()
        outer = (GlobalHydra.instance(), GlobalHydra.instance().hydra, version.version_base, job.get("name"))
        token = _extra_folders.set(tuple(folders[1:]))
        outer[0].hydra = None
        try:
            with initialize_config_dir(str(folders[0].path), job_name="tokenloom", version_base=_VERSION_BASE):
                yield GlobalHydra.instance().config_loader()
        finally:
            _extra_folders.reset(token)
            outer[0].hydra = outer[1]
            GlobalHydra.set_instance(outer[0])
            version.version_base = outer[2]
            job.set("name", outer[3])
