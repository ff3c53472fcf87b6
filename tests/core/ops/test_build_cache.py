"""The cache of built libraries: what it accepts, and who builds when."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenloom.ops.native.build_cache import cached_library


class Builder:
    """Counts what it builds. `before` runs inside each build."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self.num_builds = 0
        self.said: list[str] = []
        self._before = before

    def build(self, folder: Path) -> Path:
        assert list(folder.iterdir()) == []
        self.num_builds += 1
        self._before()
        (folder / "object.o").write_bytes(b"object")
        library = folder / "made.so"
        library.write_bytes(b"library")
        return library

    def get(self, folder: Path) -> Path:
        return cached_library(folder, "ops-123", "ops.so", self.build, self.said.append)


def test_cached_library_is_built_once(tmp_path: Path) -> None:
    builder = Builder()
    path = builder.get(tmp_path / "cache")
    assert path == tmp_path / "cache" / "ops-123" / "ops.so"
    assert path.read_bytes() == b"library"
    assert builder.get(tmp_path / "cache") == path
    assert builder.num_builds == 1
    assert sorted(found.name for found in (tmp_path / "cache").iterdir()) == ["ops-123", "ops-123.lock"]


def _truncate(library: Path) -> None:
    library.write_bytes(library.read_bytes()[:-1])


def _lose_record(library: Path) -> None:
    (library.parent / "ops.so.sha256").unlink()


def _open_to_all(library: Path) -> None:
    library.chmod(0o777)


def _open_folder_to_all(library: Path) -> None:
    library.parent.chmod(0o777)


def _replace_by_file(library: Path) -> None:
    for path in library.parent.iterdir():
        path.unlink()
    library.parent.rmdir()
    library.parent.write_text("no folder")


@pytest.mark.parametrize("spoil", [_truncate, _lose_record, _open_to_all, _open_folder_to_all, _replace_by_file])
def test_cached_library_is_rebuilt_when_it_is_damaged_or_foreign(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    builder = Builder()
    spoil(builder.get(tmp_path))
    assert builder.get(tmp_path).read_bytes() == b"library"
    assert builder.num_builds == 2
    assert builder.get(tmp_path)
    assert builder.num_builds == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_cached_library_of_another_user_is_rebuilt(tmp_path: Path) -> None:
    builder = Builder()
    os.chown(builder.get(tmp_path), 4321, 4321)
    builder.get(tmp_path)
    assert builder.num_builds == 2


def test_cached_library_is_not_there_after_a_build_that_failed(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        Builder(fail).get(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ops-123.lock"]


def test_cached_library_clears_what_killed_builds_left(tmp_path: Path) -> None:
    (tmp_path / ".ops-123-abc" / "build").mkdir(parents=True)
    (tmp_path / ".other-1").mkdir()
    Builder().get(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other-1", "ops-123", "ops-123.lock"]


def test_cached_library_is_built_by_one_of_two_at_once(tmp_path: Path) -> None:
    is_building, is_other_waiting = threading.Event(), threading.Event()

    def until_other_waits() -> None:
        is_building.set()
        assert is_other_waiting.wait(60)

    first, second = Builder(until_other_waits), Builder()
    found: list[Path] = []

    def wait(words: str) -> None:
        second.said.append(words)
        is_other_waiting.set()

    def build_second() -> None:
        assert is_building.wait(60)
        found.append(cached_library(tmp_path, "ops-123", "ops.so", second.build, wait))

    other = threading.Thread(target=build_second)
    other.start()
    found.append(first.get(tmp_path))
    other.join()
    assert (first.num_builds, second.num_builds) == (1, 0)
    assert found[0] == found[1]
    assert second.said == ["waiting for another process that is building it"]
