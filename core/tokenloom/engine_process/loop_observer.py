"""Who wants to hear what an engine loop does, for metrics and traces. Called between steps, so it must be quick."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tokenloom.engine_output import EngineOutput
from tokenloom.engine_process.messages import Refused
from tokenloom.engine_process.operations import Operations
from tokenloom.errors import PluginContractError
from tokenloom.request import Request

__all__ = ["LoopObserver"]


class LoopObserver(ABC):
    """Hears of each submission, step and ending, in the order in which they happen."""

    @abstractmethod
    def accepted(self, requests: Sequence[Request]) -> None:
        """The choices of a submission were taken in."""

    @abstractmethod
    def refused(self, refused: Refused) -> None:
        """A submission was not taken in."""

    @abstractmethod
    def stepped(self, outputs: Sequence[EngineOutput]) -> None:
        """A step has landed, with the news of all front ends' requests."""

    @abstractmethod
    def ended(self, output: EngineOutput) -> None:
        """A request ended between steps: aborted, cut at a stop string, or failed with an illegal plan."""

    @abstractmethod
    def plan_failed(self, error: PluginContractError) -> None:
        """A plan was illegal; all requests have failed."""

    @abstractmethod
    def operations(self) -> Operations:
        """Operations of `Call` that it answers, by name."""
