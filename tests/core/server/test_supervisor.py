"""Supervisor over processes that a test plays: what is told to whom, and how a server ends."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from typing import Any, final

import pytest

from tokenloom.errors import ConfigError, EngineDeadError
from tokenloom.server import supervisor as supervisor_module
from tokenloom.server.engine_keeper import EngineDied
from tokenloom.server.front_end_pool import FrontEndDied
from tokenloom.server.reports import ChildFailed, Composed, Drain, EngineDown, EngineReady, EngineUp
from tokenloom.server.settings import ServerSettings
from tokenloom.server.supervisor import Supervisor

Event = Composed | EngineReady | EngineDied | FrontEndDied | Callable[[], None]
SETTINGS = ServerSettings(port=0, drain_timeout_s=50.0, max_engine_restarts=3)
STARTED = (Composed(SETTINGS, b""), EngineReady("model tiny, cpu"))


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@final
class Play:
    """A script of what happens, an event a turn; and what the supervisor did about it."""

    def __init__(self, *events: Event, stubborn: bool = False) -> None:
        """`stubborn` front ends do not end when they are asked to."""
        self.events = list(events)
        self.is_stubborn = stubborn
        self.told: list[Any] = []
        self.done: list[str] = []
        self.has_happened = False

    def of_kind(self, kinds: tuple[type, ...]) -> Iterator[Any]:
        """The next event, if it is of these kinds; functions are called."""
        if self.has_happened or not self.events:
            return
        event = self.events[0]
        if isinstance(event, kinds):
            self.has_happened = True
            yield self.events.pop(0)
        elif not isinstance(event, Composed | EngineReady | EngineDied | FrontEndDied):
            self.has_happened = True
            self.events.pop(0)
            event()


@final
class PlayedEngine:
    """Stands for an `EngineKeeper`."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.is_running = False
        self.is_ready = False
        self.num_restarts = 0
        self.address = "ipc://engine-0"

    def start(self) -> None:
        self.is_running = True

    def watched(self) -> list[Any]:
        return []

    def patience_s(self) -> float:
        return 0.0

    def take(self) -> Iterator[Any]:
        self.play.has_happened = False
        for event in self.play.of_kind((Composed, EngineReady, EngineDied)):
            self.is_ready = isinstance(event, EngineReady)
            self.num_restarts += isinstance(event, EngineDied)
            yield event

    def tell_gone(self, front_end: str) -> None:
        self.play.done.append(f"gone {front_end}")

    def stop(self) -> None:
        self.play.done.append("stop engine")
        self.is_running = False

    def kill(self) -> None:
        self.is_running = False


@final
class PlayedFrontEnds:
    """Stands for a `FrontEndPool`."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.is_serving = False
        self.num_running = 0

    def start(self) -> None:
        self.num_running = 1
        self.is_serving = True

    def watched(self) -> list[Any]:
        return []

    def patience_s(self) -> None:
        return None

    def tell(self, report: Any) -> None:
        self.play.told.append(report)
        if isinstance(report, Drain) and not self.play.is_stubborn:
            self.num_running = 0

    def take(self) -> Iterator[Any]:
        yield from self.play.of_kind((FrontEndDied,))

    def kill(self) -> None:
        self.play.done.append("kill front ends")
        self.num_running = 0


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Play], int]:
    def run(play: Play) -> int:
        monkeypatch.setattr(supervisor_module, "EngineKeeper", lambda *_: PlayedEngine(play))
        monkeypatch.setattr(supervisor_module, "FrontEndPool", lambda *_: PlayedFrontEnds(play))
        return Supervisor().run()

    return run


Run = Callable[[Play], int]


@pytest.mark.parametrize("ask", [interrupt, terminate])
def test_a_signal_drains_the_front_ends_and_then_stops_the_engine(
    run: Run, ask: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    play = Play(*STARTED, ask)
    assert run(play) == 0
    assert play.told == [EngineUp("ipc://engine-0", 0), Drain(50.0)]
    assert play.done[0] == "stop engine"
    out = capsys.readouterr().out
    assert out.startswith("listening on http://127.0.0.1:")
    assert out.endswith(" (model tiny, cpu)\n")


@pytest.mark.parametrize(
    ("limits", "raised_to"),
    [((1024, 4096), (4096, 4096)), ((1024, 10**9), (65_536, 10**9)), ((4096, 4096), None), ((10**6, 10**9), None)],
)
def test_the_limit_of_open_files_is_raised_for_all_processes(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised_to: tuple[int, int] | None
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: calls.append(wanted))
    supervisor_module._raise_file_limit()
    assert calls == ([] if raised_to is None else [raised_to])


def test_a_second_signal_ends_at_once(run: Run) -> None:
    assert run(Play(*STARTED, terminate, interrupt, stubborn=True)) == 128 + signal.SIGINT


def test_a_signal_before_anything_listens_ends_the_server(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    play = Play(interrupt)
    assert run(play) == 0
    assert (play.told, play.done) == ([], ["stop engine"])
    assert capsys.readouterr().out == ""


def test_a_signal_in_the_turn_in_which_the_engine_is_composed_starts_no_front_ends(run: Run) -> None:
    play = Play(terminate, STARTED[0])
    assert run(play) == 0
    assert (play.told, play.done) == ([], ["stop engine"])


def test_signal_handlers_are_those_of_before_afterwards(run: Run) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    run(Play(interrupt))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_front_ends_are_told_of_a_dead_engine_and_of_the_next_one(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    died = EngineDied("the engine died (killed by SIGKILL)", None, 2.0)
    play = Play(*STARTED, died, EngineReady("again"), terminate)
    assert run(play) == 0
    assert play.told == [
        EngineUp("ipc://engine-0", 0),
        EngineDown("the engine died (killed by SIGKILL); it is being restarted"),
        EngineUp("ipc://engine-0", 1),
        Drain(50.0),
    ]
    assert "the engine died (killed by SIGKILL); it is restarted in 2 s" in caplog.text
    assert "the engine is back" in caplog.text


def test_an_engine_that_dies_too_often_ends_the_server_with_an_error(run: Run) -> None:
    play = Play(*STARTED, EngineDied("the engine died (exit code 1)", None, None))
    with pytest.raises(EngineDeadError, match=r"exit code 1\); it was restarted 3 times in a row"):
        run(play)
    assert play.told[1:] == [EngineDown("the engine died (exit code 1)"), Drain(0.0)]


def test_an_engine_that_dies_while_the_server_drains_is_not_restarted(run: Run) -> None:
    died = EngineDied("the engine died (killed by SIGKILL)", None, 0.0)
    play = Play(*STARTED, terminate, died, interrupt, stubborn=True)
    assert run(play) == 128 + signal.SIGINT
    assert play.told[1:] == [Drain(50.0), EngineDown("the engine died (killed by SIGKILL)")]
    assert "stop engine" in play.done


@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        (ChildFailed("cache.block_size=0: no", True), ConfigError, "cache.block_size=0: no"),
        (ChildFailed("no memory", False), EngineDeadError, "no memory"),
        (None, EngineDeadError, "the engine died before the server was ready"),
    ],
)
def test_an_engine_that_cannot_start_is_the_users_error(
    run: Run, failure: ChildFailed | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        run(Play(EngineDied("the engine died", failure, 0.0)))
    assert (type(raised.value), str(raised.value)) == (error, message)


def test_a_front_end_that_dies_is_known_to_the_engine(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    play = Play(*STARTED, FrontEndDied("front-end-0.1", "front-end-0.1 died (exit code 1)", None, 0.0), terminate)
    assert run(play) == 0
    assert play.done[0] == "gone front-end-0.1"
    assert "another one takes its place" in caplog.text


def test_a_front_end_that_dies_while_the_server_drains_is_known_to_the_engine_and_no_error(run: Run) -> None:
    died = FrontEndDied("front-end-0.1", "front-end-0.1 died (exit code 1)", None, None)
    play = Play(*STARTED, terminate, died, interrupt, stubborn=True)
    assert run(play) == 128 + signal.SIGINT
    assert play.done[0] == "gone front-end-0.1"
    assert play.told[1:] == [Drain(50.0)]


def test_front_ends_that_keep_dying_end_the_server_with_an_error(run: Run) -> None:
    with pytest.raises(EngineDeadError, match=r"front-end-0\.6 died, as several before it did"):
        run(Play(*STARTED, FrontEndDied("front-end-0.6", "front-end-0.6 died", None, None)))


def test_a_front_end_that_cannot_start_is_the_users_error(run: Run) -> None:
    failed = FrontEndDied("front-end-0.1", "it died", ChildFailed("server.otel_endpoint=x: no", True), 0.0)
    with pytest.raises(ConfigError, match=r"server\.otel_endpoint=x: no"):
        run(Play(STARTED[0], failed))


def test_a_port_in_use_ends_the_server_before_front_ends_start(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"server\.host=no such host"):
        run(Play(Composed(ServerSettings(host="no such host"), b"")))
