"""What can stand between an engine and the parts that it asks, to hear what goes by: a decision trace, a profile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

from tokenloom.batch import StepResult
from tokenloom.clock import Clock
from tokenloom.interfaces.executor import Executor, StepHandle
from tokenloom.interfaces.scheduler import Scheduler

__all__ = ["EngineTap", "HeardHandle"]


class EngineTap(ABC):
    """Wraps parts of an engine when it is wired, and a scheduler that takes over later.

    What it gives back must pass on every call and change nothing. All taps hear the executor; one that leaves the clock
    or the scheduler alone need not name it.
    """

    def clock(self, inner: Clock) -> Clock:
        """A clock that the engine reads in place of `inner`; here `inner` itself."""
        return inner

    def scheduler(self, inner: Scheduler) -> Scheduler:
        """A scheduler that the engine asks in place of `inner`; here `inner` itself."""
        return inner

    @abstractmethod
    def executor(self, inner: Executor) -> Executor:
        """An executor that the engine runs in place of `inner`."""


@final
class HeardHandle(StepHandle):
    """A step in flight whose result is told, once, when it is first asked for."""

    def __init__(self, inner: StepHandle, hear: Callable[[StepResult], None]) -> None:
        self._inner = inner
        self._hear = hear
        self._result: StepResult | None = None

    def is_done(self) -> bool:
        return self._inner.is_done()

    def result(self) -> StepResult:
        if self._result is None:
            self._result = self._inner.result()
            self._hear(self._result)
        return self._result
