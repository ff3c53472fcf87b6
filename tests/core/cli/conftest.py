"""Fixtures of the command line tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tokenloom.cli import main
from tokenloom.plugins import default_registry

RunCli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunCli:
    """Runs the command line; returns (exit code, stdout, stderr)."""
    monkeypatch.delenv("TOKENLOOM_TRACEBACK", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def fresh_registry() -> Iterator[None]:
    """Makes the default registry read the installed packages anew, before and after the test."""
    default_registry.cache_clear()
    yield
    default_registry.cache_clear()
