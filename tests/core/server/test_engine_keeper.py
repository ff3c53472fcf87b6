"""EngineKeeper over a process that a test plays: when an engine counts as hung."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

import pytest

from tests.core.server.played_process import PlayedProcess
from tokenloom.server import engine_keeper as keeper_module
from tokenloom.server.engine_child import EngineSetup
from tokenloom.server.engine_keeper import EngineDied, EngineKeeper
from tokenloom.server.reports import Composed, EngineReady
from tokenloom.server.settings import ServerSettings


@final
class Kept:
    """A keeper, and its engine."""

    def __init__(self, folder: Path, timeout_s: float | None) -> None:
        self.process = PlayedProcess()
        self.keeper = EngineKeeper((), None, folder)
        self._settings = ServerSettings(step_timeout_s=timeout_s)

    def beat(self, age_s: float) -> None:
        """The engine's last beat was so long ago."""
        self._setup.beat[0] = time.monotonic() - age_s

    def start(self, target: object, setup: EngineSetup, name: str) -> PlayedProcess:
        self._setup = setup
        setup.reports.send(Composed(self._settings, b""))
        setup.reports.send(EngineReady("tiny"))
        return self.process


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float | None], Kept]]:
    with TemporaryDirectory() as folder:

        def keep(timeout_s: float | None) -> Kept:
            kept = Kept(Path(folder), timeout_s)
            monkeypatch.setattr(keeper_module, "start_child", kept.start)
            kept.keeper.start()
            made.append(kept)
            assert [type(event) for event in kept.keeper.take()] == [Composed, EngineReady]
            return kept

        made: list[Kept] = []
        yield keep
        for kept in made:
            kept.keeper.kill()


Keep = Callable[[float | None], Kept]


@pytest.mark.parametrize("has_beaten", [True, False])
def test_an_engine_whose_last_beat_is_too_old_is_ended(keep: Keep, has_beaten: bool) -> None:
    """Whether it was at work then or idle: both beat."""
    kept = keep(20.0)
    kept.beat(1.0)
    assert not list(kept.keeper.take())
    if has_beaten:
        kept.beat(21.0)
    assert not list(kept.keeper.take())
    assert kept.process.num_kills == int(has_beaten)
    died = list(kept.keeper.take())
    if has_beaten:
        assert [(type(event), event.reason) for event in died if isinstance(event, EngineDied)] == [
            (EngineDied, "the engine hung: no sign of life for server.step_timeout_s=20")
        ]


def test_an_engine_is_not_blamed_for_a_time_in_which_nobody_looked(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z suspends supervisor and engine alike; after `fg` the one may run before the other."""
    kept = keep(20.0)
    kept.beat(1.0)
    assert not list(kept.keeper.take())
    kept.beat(500.0)
    monkeypatch.setattr(kept.keeper, "_looked_s", time.monotonic() - 499.0)
    assert not list(kept.keeper.take())
    assert kept.process.num_kills == 0
    assert not list(kept.keeper.take())
    assert kept.process.num_kills == 1, "it has had its chance"


def test_without_a_limit_nobody_looks(keep: Keep) -> None:
    kept = keep(None)
    kept.beat(1e6)
    assert not list(kept.keeper.take())
    assert not list(kept.keeper.take())
    assert (kept.process.num_kills, kept.keeper.patience_s()) == (0, None)
