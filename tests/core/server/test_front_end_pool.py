"""FrontEndPool over processes that a test plays: who is replaced, and what is left once the server ends."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.core.server.played_process import PlayedProcess
from tokenloom.server import front_end_pool as pool_module
from tokenloom.server.front_end_pool import FrontEndPool
from tokenloom.server.reports import Drain
from tokenloom.server.settings import ServerSettings


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[PlayedProcess]:
    """Those that were started, in order."""
    started: list[PlayedProcess] = []

    def start(*_: object, name: str) -> PlayedProcess:
        started.append(PlayedProcess())
        return started[-1]

    monkeypatch.setattr(pool_module, "start_child", start)
    return started


@pytest.fixture
def pool(processes: list[PlayedProcess]) -> FrontEndPool:
    with socket.socket() as listener:
        made = FrontEndPool(ServerSettings(workers=2), listener, Path(), "module:app")
    made.start()
    assert len(processes) == 2
    return made


def test_one_that_dies_is_replaced(pool: FrontEndPool, processes: list[PlayedProcess]) -> None:
    assert pool.patience_s() is None
    processes[0].end(1)
    (died,) = pool.take()
    assert (died.name, died.reason, died.pause_s) == ("front-end-0.1", "front-end-0.1 died (exit code 1)", 0.0)
    assert (pool.patience_s(), pool.num_running) == (0.0, 1)
    assert not list(pool.take())
    assert (pool.patience_s(), pool.num_running, len(processes)) == (None, 2, 3)
    pool.kill()


def test_once_the_server_drains_none_is_replaced_and_nothing_is_waited_for(
    pool: FrontEndPool, processes: list[PlayedProcess]
) -> None:
    """One was to be replaced, the other ends as it was told to: what is left must not make the supervisor spin."""
    processes[0].end(1)
    assert [died.name for died in pool.take()] == ["front-end-0.1"]
    pool.tell(Drain(30.0))
    processes[1].end(0)
    assert [(died.name, died.pause_s) for died in pool.take()] == [("front-end-1.1", None)]
    assert not list(pool.take())
    assert (pool.patience_s(), pool.num_running, pool.watched(), len(processes)) == (None, 0, [], 2)
