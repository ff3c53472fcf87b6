"""The narrow side of contract `scheduler` 1.3, and the contracts of its parts: `scheduler.victim` 1.0 (who gives memory
back) and `scheduler.admission` 1.0 (whether memory will last for one more).

A policy answers a few questions; `tokenloom.scheduling.PolicyScheduler` turns the answers into plans. Version 1.1 adds
`step_limits`, `sequence`, `is_preemptive` and `select_displaced`, and defaults for `admit`, `chunk` and `observe`. From
1.2 on, a victim comes after the request that it gives memory to; from 1.3 on, `observe` is told of admissions. A policy
written for an older one runs unchanged.
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

__all__ = [
    "ADMISSION_CONTRACT_VERSION",
    "VICTIM_CONTRACT_VERSION",
    "AdmissionConfig",
    "AdmissionPolicy",
    "SchedulingPolicy",
    "StepLimits",
    "VictimConfig",
    "VictimPolicy",
]

ADMISSION_CONTRACT_VERSION = CONTRACT_VERSIONS["scheduler.admission"]
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
    ones, each in `order`. For a running one that lacks blocks it preempts what `select_victim` names of those that come
    after it in `order`. Waiting ones are admitted, if nothing was preempted for want of blocks, as long as slots,
    tokens and blocks last, and the part `scheduler.admission`, if there is one, lets them. The first one that does not
    fit ends admission (no overtaking, but see `StepLimits`), unless the policy is preemptive and finds whom to displace
    for it.

    One that waits for a prefix which another computes in this step (`Shortfall`, "prefix") ends nothing, and keeps its
    place: those behind it start only with what is left beside a slot for it, the blocks and a token of the next step,
    and displace nobody. So it starts when the prefix has landed, as if nobody had come behind it. What is not kept is
    memory that running requests take later than block_size steps from then on, or for drafts.

    So of the running requests the first in `order` always goes on. Where drafts are more than the budget holds, they
    leave a token for each running request that comes later in the sequence.
    """

    @abstractmethod
    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        """The order in which requests are served; called for the running and for the waiting ones. May be lazy.

        Of the running ones it is also the order in which they keep their memory, whatever `sequence` is.
        """

    def sequence(self, view: SchedulerView, ledger: Ledger) -> Iterable[RequestView]:
        """The order over running and waiting requests together. Read no further than it is needed, so be lazy.

        Once nobody can join any more it is asked again, with nobody waiting: for the running requests that are left.
        Who waits does not change the order of those that run.

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
            candidates: `request` and the running requests that come after it in `order`, without those preempted in
                this step; in order of admission.

        Returns:
            One of the candidates (`request` itself gives up its place), or None to let `request` wait. The first in
            `order` does not give up its place while there are others: then the policy is asked again, on behalf of
            the last of these.
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


class AdmissionConfig(PluginConfig):
    """Base of admission Configs. `build` takes a `SchedulerContext`."""

    @abstractmethod
    def build(self, context: SchedulerContext) -> AdmissionPolicy: ...


class AdmissionPolicy(ABC):
    """Whether memory will last if one more request runs; the sub-kind `scheduler.admission`.

    It is asked when a waiting request could start: the scheduler wants it next, and what it needs for this step is
    there. It is not asked about a request beside which nobody would run, so that somebody always can. Whoever it keeps
    out waits, and those behind it do; a preemptive scheduler may displace running requests to make room.

    An answer depends on the arguments and the policy's own state, which changes in `observe` only.
    """

    @property
    def can_refuse(self) -> bool:
        """Whether it ever keeps somebody out; if not it is not asked, which saves time."""
        return True

    @abstractmethod
    def num_missing_blocks(
        self, request: RequestView, others: Sequence[RequestView], view: SchedulerView, ledger: Ledger
    ) -> int:
        """How many blocks per KV group lack for `request` to start now; 0 lets it start.

        Args:
            request: waits, and holds a grant on the ledger, which is taken back if the answer is not 0.
            others: who would run beside it, one or more: running requests that were not preempted, then those that
                start before it in this step, then those that come before it and wait for a prefix, without a grant.
            view: of this step.
            ledger: to be read only, with the grants so far. `spare_blocks` is what is left when `request` has started;
                `num_blocks`, `num_own_blocks` and `num_granted_tokens` tell what it and the others hold.
        """

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
