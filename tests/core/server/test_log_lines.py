"""Lines of the log: when, how bad, whose, what."""

from __future__ import annotations

import logging
import re

import pytest

from tokenloom.server.log_lines import log_to_stderr


def bare_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: pytest's own handlers are there only while a test runs, so no fixture can do it."""
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.root.level)


def test_a_line_has_its_time_level_and_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare_root(monkeypatch)
    log_to_stderr("info")
    logging.getLogger("some.module").info("done")
    line = capsys.readouterr().err
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO some\.module: done\n", line), line


def test_the_level_can_be_changed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bare_root(monkeypatch)
    log_to_stderr("info")
    log_to_stderr("error")
    logging.getLogger("some.module").warning("unseen")
    logging.getLogger("some.module").error("seen")
    assert capsys.readouterr().err.count("\n") == 1
    log_to_stderr("debug")
    logging.getLogger("some.module").debug("seen")
    assert "DEBUG" in capsys.readouterr().err
