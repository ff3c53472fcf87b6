"""Fixtures of the compose tests: the installed plugins, and ways to add to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tokenloom.plugins import Registry, default_registry


@pytest.fixture(scope="session")
def registry() -> Registry:
    return default_registry()


@pytest.fixture
def config_dir(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Writes a --config-dir with the given files."""

    def write(files: dict[str, str]) -> Path:
        folder = tmp_path / "user_conf"
        folder.mkdir()
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return folder

    return write
