"""Command lines that documents show, run in this process: a new one would spend most of its time on imports."""

from __future__ import annotations

import shlex

import pytest

from tokenloom.cli import main


def run_shown(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs each line of a block, which holds calls of `tokenloom` and comments only; each must succeed and print."""
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "tokenloom", f"{line} is for a shell"
        code = main(words[1:])
        printed = capsys.readouterr()
        assert code == 0, f"{line}\n{printed.out}\n{printed.err}"
        assert printed.out.strip(), f"{line}\nprinted nothing"
