"""The narrow side of contract `scheduler` 1.1, and contract `scheduler.victim` 1.0 (who gives memory back).

A policy answers a few questions; `tokenloom.scheduling.PolicyScheduler` turns the answers into plans. Version 1.1 adds
`step_limits`, `sequence`, `is_preemptive` and `select_displaced`, and defaults for `admit`, `chunk` and `observe`; a
policy written for 1.0 runs as before.
"""

# ruff: noqa: ARG002 - a default answer need not read what it is given

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenloom.interfaces.contract import CONTRACT_VERSIONS, PluginConfig
from tokenloom.interfaces.scheduler import Ledger, SchedulerContext, SchedulerView, Shortfall
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.request import RequestView

__all__ = ["VICTIM_CONTRACT_VERSION", "SchedulingPolicy", "StepLimits", "VictimConfig", "VictimPolicy"]

VICTIM_CONTRACT_VERSION = CONTRACT_VERSIONS["scheduler.victim"]


@dataclass(frozen=True, slots=True)
class StepLimits:
    """A policy's own limits on one step, on top of the hard ones; None sets none. Each is 1 or more.

    A request with more than one token of its own (drafts not counted) left to compute counts as a prompt, whether it is
    new or comes back after preemption.

    Attributes:
        max_num_seqs: nobody is admitted while so many run.
        max_chunk_tokens: most tokens of one prompt.
        max_prefill_tokens: most tokens of all prompts together.
        max_num_partial_prefills: most prompts that are under way, computed in part, after the step. While so many are,
            none starts that would not be computed whole.
        max_long_partial_prefills: the same for long prompts. One that has to wait for this is overtaken by others.
        long_prefill_token_threshold: a prompt with more tokens than this left to compute is long. What
            is left decides, so a long prompt is no longer long near its end.
    """

    max_num_seqs: int | None = None
    max_chunk_tokens: int | None = None
    max_prefill_tokens: int | None = None
    max_num_partial_prefills: int | None = None
    max_long_partial_prefills: int | None = None
    long_prefill_token_threshold: int = 0


class SchedulingPolicy(ABC):
    """The narrow points of a scheduler. Each is a function of the view and the policy's own state.

    `tokenloom.scheduling.PolicyScheduler` goes through `sequence`: by default the running requests and then the waiting
    ones, each in `order`. For a running one that lacks blocks it preempts what `select_victim` names. Waiting ones are
    admitted, if nothing was preempted for want of blocks, as long as slots, tokens and blocks last. The first one that
    does not fit ends admission (no overtaking, but see `StepLimits`), unless the policy is preemptive and finds whom
    to displace for it.
    """

    @abstractmethod
    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        """The order in which requests are served; called for the running and for the waiting ones. May be lazy."""

    def sequence(self, view: SchedulerView, ledger: Ledger) -> Iterable[RequestView]:
        """The order over running and waiting requests together. Read no further than it is needed, so be lazy.

        Where a waiting request comes before a running one, let `select_victim` follow the same order, or the two can
        take each other's memory for ever.

        Args:
            view: of this step.
            ledger: to be read only, e.g. for `cached_tokens`.
        """
        yield from self.order(view.running, view)
        yield from self.order(view.waiting, view)

    def step_limits(self, view: SchedulerView) -> StepLimits:
        """Limits of this step below the hard ones; none by default."""
        return StepLimits()

    def admit(self, request: RequestView, view: SchedulerView, ledger: Ledger) -> bool:
        """Whether a waiting request that would fit may start now. False ends admission in this step."""
        return True

    def chunk(self, request: RequestView, need: int, view: SchedulerView, ledger: Ledger) -> int:
        """How many of the `need` tokens to compute now: 0 (skip) .. min(need, ledger.remaining_tokens).

        By default as many as the budget holds. `step_limits` are applied to the answer.
        """
        return min(need, ledger.remaining_tokens)

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

    @property
    def is_preemptive(self) -> bool:
        """Whether waiting requests may take running ones' places; only then `select_displaced` is asked."""
        return False

    def select_displaced(
        self, request: RequestView, shortfall: Shortfall, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        """Who gives up its place so that a waiting request can start; asked again until it fits.

        If in the end it does not fit, nobody is displaced. Where `request` would be displaced for the victim in turn,
        the two never end: choose by an order in which no two requests are equal.

        Args:
            request: the waiting request.
            shortfall: what it lacks, "slots" or "blocks".
            candidates: running requests not yet preempted in this step, in order of admission.

        Returns:
            One of the candidates, or None to let `request` wait.
        """
        return None

    def observe(self, event: SchedulerEvent) -> None:  # noqa: B027
        """See `Scheduler.observe`. By default nothing is kept."""


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
