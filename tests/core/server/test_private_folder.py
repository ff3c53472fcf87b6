"""The private folder of a server: its own while it lives, and nobody's afterwards."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenloom.errors import ConfigError
from tokenloom.server.private_folder import private_folder


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def make_old(folder: Path) -> None:
    os.utime(folder, (1.0, 1.0))


def test_it_is_closed_to_others_and_gone_afterwards(place: Path) -> None:
    with private_folder() as folder:
        assert folder.parent == place
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(place.iterdir()) == []


def test_what_a_killed_server_left_is_removed_by_the_next_one(place: Path) -> None:
    left = place / "tokenloom-serve-left"
    left.mkdir()
    (left / "lock").touch()
    (left / "engine-0").touch()
    make_old(left)
    with private_folder():
        assert not left.exists()


def test_the_folders_of_living_starting_and_foreign_programs_are_kept(place: Path) -> None:
    starting, foreign = place / "tokenloom-serve-new", place / "tokenloom-other"
    for folder in (starting, foreign):
        folder.mkdir()
        (folder / "lock").touch()
    make_old(foreign)
    with private_folder() as living:
        make_old(living)
        with private_folder():
            assert living.exists()
            assert starting.exists()
            assert foreign.exists()


def test_a_place_with_too_long_a_path_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / ("x" * 100)))
    with pytest.raises(ConfigError, match="set TMPDIR"), private_folder():
        pass
