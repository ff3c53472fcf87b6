"""Files to write: what is wrong with them is known before a run, and looking leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokenloom.errors import ConfigError
from tokenloom.output_files import check_output_files, output_fault


def test_a_file_that_can_be_written_is_not_touched(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("precious")
    os.utime(old, (1, 1))
    assert output_fault(old) is None
    assert output_fault(tmp_path / "new.json") is None
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert (old.read_text(), old.stat().st_mtime) == ("precious", 1)


def test_links_are_followed_and_kept(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new.json")
    assert output_fault(link) is None
    assert link.is_symlink()
    assert not link.exists()
    link.unlink()
    link.symlink_to(tmp_path / "nowhere" / "new.json")
    assert output_fault(link) == "its folder does not exist; make it first"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("nowhere/x.json", "its folder does not exist; make it first"),
        ("file/x.json", "its folder does not exist; make it first"),
        (".", "it is a folder; name a file"),
        ("x" * 300, "it cannot be written: File name too long"),
        ("/proc/x.json", "it cannot be written: "),
    ],
)
def test_what_cannot_be_written_is_told(name: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(output_fault(tmp_path / name)).startswith(fault)
    with pytest.raises(ConfigError, match=f"plot=.*: {fault}"):
        check_output_files({}, {"output": None, "plot": str(tmp_path / name)})


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    """Its reader would take that for the end."""
    os.mkfifo(tmp_path / "pipe")
    assert output_fault(tmp_path / "pipe") is None
    assert output_fault(Path("/dev/null")) is None


@pytest.mark.parametrize(
    ("output", "plot", "trace", "message"),
    [
        ("a", None, None, "workload and output name the same file, a; name another one for output"),
        ("link", None, None, "workload and output name the same file, link; name another one for output"),
        ("b", "./b", None, "output and plot name the same file, ./b; name another one for plot"),
        ("b", "c", "x/../b", "output and trace.file name the same file, x/../b; name another one for trace.file"),
        ("b", "c", "c", "plot and trace.file name the same file, c; name another one for trace.file"),
    ],
)
def test_files_that_would_overwrite_each_other_are_named(
    output: str, plot: str | None, trace: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    Path("a").write_text("")
    Path("link").symlink_to("a")
    with pytest.raises(ConfigError) as refusal:
        check_output_files({"workload": "a"}, {"output": output, "plot": plot}, [None, trace])
    assert str(refusal.value) == message


def test_files_that_differ_and_keys_without_a_file_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_output_files({"workload": "a"}, {"output": "b", "plot": None}, ["c", None, "d", None])
    check_output_files({"workload": None}, {"output": "generated"})
