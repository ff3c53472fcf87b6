"""Imports at the start of a process run without the garbage collector, and it never walks what they made."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

from tokenloom.cli import main
from tokenloom.cli.main import COMMANDS
from tokenloom.collector_pause import collector_paused

SCRIPT = """
import gc
from tokenloom.collector_pause import collector_paused
with collector_paused():
    made = []
later = []
for each in (made, later):
    print(sum(other is each for other in gc.get_objects()))
"""


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_rests_and_is_then_as_it_was(was_enabled: bool) -> None:
    (gc.enable if was_enabled else gc.disable)()
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled() is was_enabled


def test_what_the_block_made_is_not_walked() -> None:
    # In a process of its own: what else a test runner has alive would hide it.
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]


def test_the_collector_works_again_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), collector_paused():
        _ = 1 // 0
    assert gc.isenabled()


def test_a_process_imports_its_command_ahead_and_a_call_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, bool]] = []
    # The package has the function under the module's name.
    module = import_module("tokenloom.cli.main")
    monkeypatch.setattr(module, "load_target", lambda target: loaded.append((target, gc.isenabled())))
    assert main(["plugins", "-h"]) == 0
    assert loaded == []
    monkeypatch.setattr("sys.argv", ["tokenloom", "plugins", "-h"])
    assert main() == 0
    assert loaded == [(COMMANDS["plugins"].target, False)]
