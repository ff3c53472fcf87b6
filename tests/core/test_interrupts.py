"""Ctrl-C waits for the end of a step, once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from tokenloom.interrupts import deferred_interrupt


@pytest.fixture(autouse=True)
def python_handler() -> Iterator[None]:
    """Python's own handler: a shell that starts the tests in the background has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupt_is_raised_at_the_end() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
        done.append("the step went on")
    assert done == ["the step went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_second_interrupt_does_not_wait() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("not reached")
    assert done == []


def test_errors_pass_through_and_the_handler_is_restored() -> None:
    with pytest.raises(ValueError, match="mine"), deferred_interrupt():
        raise ValueError("mine")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handler_of_the_program_is_left_alone() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        with deferred_interrupt():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [signal.SIGINT]


def test_other_threads_are_not_touched() -> None:
    seen: list[object] = []

    def work() -> None:
        with deferred_interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
