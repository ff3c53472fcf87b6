"""The narrow side of contract `scheduler` 1.0, and contract `scheduler.victim` 1.0 (who gives memory back).

A policy answers four questions; `tokenloom.scheduling.PolicyScheduler` turns the answers into plans.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from tokenloom.interfaces.contract import CONTRACT_VERSIONS, PluginConfig
from tokenloom.interfaces.scheduler import Ledger, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.request import RequestView

__all__ = ["VICTIM_CONTRACT_VERSION", "SchedulingPolicy", "VictimConfig", "VictimPolicy"]

VICTIM_CONTRACT_VERSION = CONTRACT_VERSIONS["scheduler.victim"]


class SchedulingPolicy(ABC):
    """The narrow points of a scheduler. Each is a function of the view and the policy's own state.

    `tokenloom.scheduling.PolicyScheduler` serves running requests first, in `order`; preempts what `select_victim`
    names while blocks lack; then, if nothing was preempted, admits waiting requests, in `order`, as long as slots,
    tokens and blocks last. The first one that does not fit ends admission (no overtaking).
    """

    @abstractmethod
    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        """The order in which requests are served; called for the running and for the waiting ones. May be lazy."""

    @abstractmethod
    def admit(self, request: RequestView, view: SchedulerView, ledger: Ledger) -> bool:
        """Whether a waiting request that would fit may start now. False ends admission in this step."""

    @abstractmethod
    def chunk(self, request: RequestView, need: int, view: SchedulerView, ledger: Ledger) -> int:
        """How many of the `need` tokens to compute now: 0 (skip) .. min(need, ledger.remaining_tokens)."""

    @abstractmethod
    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        """Who gives memory back so that `request` can go on.

        Args:
            request: the running request that lacks blocks.
            candidates: running requests not yet preempted in this step, in order of admission; `request` is one.

        Returns:
            One of the candidates (`request` itself gives up its place), or None to let `request` wait.
        """

    @abstractmethod
    def observe(self, event: SchedulerEvent) -> None:
        """See `Scheduler.observe`."""


class VictimConfig(PluginConfig):
    """Base of victim Configs. `build` takes a `SchedulerContext`."""

    @abstractmethod
    def build(self, context: SchedulerContext) -> VictimPolicy: ...


class VictimPolicy(ABC):
    """Chooses whom to preempt; the sub-kind `scheduler.victim`."""

    @abstractmethod
    def select(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        """See `SchedulingPolicy.select_victim`."""
