"""Tables in a narrow terminal: names stay whole, lines fit, and nothing is lost."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable

import pytest

from tokenloom.cli.console import print_table
from tokenloom.cli.stacked_table import shape_of
from tokenloom.interfaces.contract import CONTRACT_VERSIONS
from tokenloom.plugins import default_registry

RunCli = Callable[..., tuple[int, str, str]]
COLUMNS = ("kind", "name", "size", "what")
ROWS = [("cache.eviction", "least_recently_used", "12", "one two three " * 6), ("cache", "x", "1", "")]


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int) -> list[str]:
    monkeypatch.setattr("tokenloom.cli.console._PIPE_WIDTH", width)
    print_table(COLUMNS, ROWS)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("width", [200, 120, 80, 60, 50, 40])
def test_names_stay_whole_and_lines_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    lines = printed(capsys, monkeypatch, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for name in ("cache.eviction", "least_recently_used", *COLUMNS):
        assert name in text
    assert text.split().count("three") == 6


def test_a_narrow_table_has_what_does_not_fit_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed(capsys, monkeypatch, 50) == [
        "",
        " kind             name                  size",
        f" {'─' * 48}",
        " cache.eviction   least_recently_used   12",
        "     what  one two three one two three one two",
        "           three one two three one two three one",
        "           two three",
        " cache            x                     1",
        "",
    ]


def test_a_name_longer_than_the_line_is_not_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.cli.console._PIPE_WIDTH", 40)
    print_table(("source", "size"), [("s" * 70, "1 kB")])
    assert f" {'s' * 70}\n" in capsys.readouterr().out


def test_wide_characters_count_as_two(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert shape_of(("a",), [("漢" * 10,)], 20).widths == (20,)
    assert shape_of(("a", "b"), [("漢" * 10, "x")], 20).widths is None


@pytest.mark.parametrize("words", [("plugins",), ("doctor",), *(("explain", kind) for kind in CONTRACT_VERSIONS)])
def test_plugins_are_readable_at_80_columns(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("tokenloom.cli.console._PIPE_WIDTH", 80)
    code, out, _ = run_cli(*words)
    assert code == 0
    shown = {word for line in out.splitlines() for word in line.replace("=", " ").split()}
    for plugin in default_registry().plugins(words[1] if len(words) > 1 else None):
        assert {plugin.info.name, plugin.package} <= shown
        if len(words) == 1:
            assert plugin.info.kind in shown


def test_a_terminal_of_80_columns_gets_lines_of_80() -> None:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    program = "from tokenloom.cli import main; main(['plugins'])"
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=slave, stdin=slave, env={**environment, "TERM": "dumb"}
    ) as running:
        os.close(slave)
        parts: list[bytes] = []
        try:
            while part := os.read(master, 65536):
                parts.append(part)
        except OSError:  # how Linux tells that the other end is closed
            pass
        running.wait()
    os.close(master)
    lines = b"".join(parts).decode().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:3] == ["spec_decode.policy", "fixed", "tokenloom"] for line in lines)
