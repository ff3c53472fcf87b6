"""The cache of built libraries: what it accepts, and who builds when."""

from __future__ import annotations

import fcntl
import os
import threading
import time
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


def _filled(folder: Path, num_entries: int, extension: str = "ops") -> list[str]:
    """Entries of one extension, the first the longest unused: names, the last of them used ten days ago."""
    names = [f"{extension}-{number:03}" for number in range(num_entries)]
    for age, name in enumerate(reversed(names)):
        cached_library(folder, name, "ops.so", Builder().build, print)
        used_s = time.time() - (10 + age) * 86400.0
        os.utime(folder / name, (used_s, used_s))
    return names


def _entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_cached_library_keeps_those_last_used_of_each_extension(tmp_path: Path) -> None:
    names = _filled(tmp_path, 8)
    others = [*_filled(tmp_path, 2, "attention"), *_filled(tmp_path, 2, "ops-more")]
    cached_library(tmp_path, names[0], "ops.so", Builder().build, print)  # its use makes it the last to go
    Builder().get(tmp_path)
    left = [names[0], *names[2:], *others, "ops-123"]
    assert _entries(tmp_path) == sorted([*left, *(f"{name}.lock" for name in left)])


def test_cached_library_keeps_what_was_used_a_short_time_ago(tmp_path: Path) -> None:
    names = _filled(tmp_path, 8)
    for name in names:
        os.utime(tmp_path / name)
    Builder().get(tmp_path)
    assert {*names, "ops-123"} <= set(_entries(tmp_path))


def test_cached_library_keeps_what_another_process_is_about_to_use(tmp_path: Path) -> None:
    names = _filled(tmp_path, 8)
    with (tmp_path / f"{names[0]}.lock").open() as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        Builder().get(tmp_path)
        assert names[0] in _entries(tmp_path)
    cached_library(tmp_path, "ops-124", "ops.so", Builder().build, print)
    assert not {*names[:2]} & {*_entries(tmp_path)}


def test_cached_library_waits_at_the_lock_that_others_see(tmp_path: Path) -> None:
    """The lock's file can be removed with its library while somebody waits at it."""
    first, second = Builder(), Builder()
    first.get(tmp_path)
    lock = tmp_path / "ops-123.lock"

    def remove(words: str) -> None:
        lock.unlink()
        (tmp_path / "ops-123").rename(tmp_path / "gone")
        held.close()

    held = lock.open()
    fcntl.flock(held, fcntl.LOCK_EX)
    path = cached_library(tmp_path, "ops-123", "ops.so", second.build, remove)
    assert second.num_builds == 1
    assert path.is_file()
    assert lock.is_file()


def test_cached_library_is_found_where_no_lock_lies(tmp_path: Path) -> None:
    builder = Builder()
    builder.get(tmp_path)
    (tmp_path / "ops-123.lock").unlink()
    os.utime(tmp_path / "ops-123", (0.0, 0.0))
    builder.get(tmp_path)
    assert builder.num_builds == 1
    assert (tmp_path / "ops-123").stat().st_mtime > 0.0, "its use counts all the same"
