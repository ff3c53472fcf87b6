"""Checkpoints of every family, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.core.models.family_checkpoints import write_family


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny random checkpoint of a family, written once."""
    folders: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in folders:
            folders[name] = write_family(tmp_path_factory.mktemp(name), name, seed=1)
        return folders[name]

    return get
