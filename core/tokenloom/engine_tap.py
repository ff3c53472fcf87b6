"""What can stand between an engine and the parts that it asks, to hear what goes by: a decision trace, a profile."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tokenloom.clock import Clock
from tokenloom.interfaces.executor import Executor
from tokenloom.interfaces.scheduler import Scheduler

__all__ = ["EngineTap"]


class EngineTap(ABC):
    """Wraps parts of an engine when it is wired. What it gives back must pass on every call and change nothing."""

    @abstractmethod
    def clock(self, inner: Clock) -> Clock:
        """A clock that the engine reads in place of `inner`; maybe `inner` itself."""

    @abstractmethod
    def scheduler(self, inner: Scheduler) -> Scheduler:
        """A scheduler that the engine asks in place of `inner`."""

    @abstractmethod
    def executor(self, inner: Executor) -> Executor:
        """An executor that the engine runs in place of `inner`."""
