"""Contract `scheduler` 1.3: who gets how many tokens in a step.

A scheduler proposes, the core disposes: it reads a view, tries reservations on a ledger (scratch counts that the core
throws away or commits), and returns a plan. The core checks the plan by its own rules and commits all of it or nothing.
There are no prefill and decode phases: a request needs `ledger.need(request)` tokens, and gets a count.

Two ways to write one: implement `Scheduler` whole, or implement the narrow `SchedulingPolicy` of
`scheduling_policy.py` and let `tokenloom.scheduling.PolicyScheduler` do the bookkeeping (the built-in fcfs does).

Rules that the core checks on every plan: known request ids; counts of at least 1 and at most the need; the token
budget; at most max_num_seqs running; victims hold memory, are not scheduled, and appear once; blocks suffice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tokenloom.batch import SchedulePlan
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, PluginConfig
from tokenloom.interfaces.ledger import Grant, Ledger, Savepoint, Shortfall
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.request import RequestView

__all__ = [
    "CONTRACT_VERSION",
    "Grant",
    "Ledger",
    "Savepoint",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerContext",
    "SchedulerView",
    "Shortfall",
]

CONTRACT_VERSION = CONTRACT_VERSIONS["scheduler"]


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """What a scheduler knows when it is built. Counts are hard limits that the core enforces.

    Attributes:
        max_num_seqs: most running requests.
        max_num_batched_tokens: most new tokens in one step.
        max_model_len: longest sequence, in tokens.
        block_size: tokens per KV block.
        num_usable_blocks: blocks that requests can hold (the null block not counted), in the smallest pool.
        preempt_mode: what the configuration wants to happen to victims' KV; `Ledger.preempt_mode` follows it.
        partial_preemption: whether it wants victims to keep what is not needed; `Ledger.keep_blocks` follows it.
        max_queued_requests: most new requests that may wait beyond those that free slots will take; None sets no limit.
        max_queued_tokens: most prompt tokens that may wait once the free slots are spoken for; None sets no limit.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_usable_blocks: int
    preempt_mode: Literal["recompute", "swap", "cheaper"] = "recompute"
    partial_preemption: bool = False
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None


class SchedulerConfig(PluginConfig):
    """Base of scheduler Configs: the limits that the core enforces whatever the plugin."""

    max_num_seqs: Annotated[int, Field(ge=1)] = Field(default=64, description="Most requests running at once.")
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = Field(
        default=2048, description="Most new tokens in one step, over all requests."
    )
    preempt_mode: Literal["recompute", "swap", "cheaper"] = Field(
        default="recompute",
        description="What happens to a victim's KV: recompute drops it, swap moves it to host memory and back, cheaper "
        "does what takes less time by what was measured.",
    )
    partial_preemption: bool = Field(
        default=False, description="Take only as many blocks from a victim's end as are needed; it keeps the others."
    )

    max_queued_requests: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Most requests that wait for a slot; more are refused. null sets no limit."
    )
    max_queued_tokens: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Most prompt tokens that wait for a slot; more are refused. null sets no limit."
    )

    @abstractmethod
    def build(self, context: SchedulerContext) -> Scheduler: ...


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """What a scheduler may read. Everything here is read-only; `debug.checks=full` verifies that it stayed so.

    Attributes:
        step_id: number of the step being planned.
        now_s: the clock, seconds.
        waiting: requests that hold no slot (new or preempted), in order of arrival. A preempted one may have kept some
            blocks.
        running: requests that hold memory, in the order in which they were admitted. Some may need nothing in this
            step because all their tokens are in flight.
        limits: the hard limits.
    """

    step_id: int
    now_s: float
    waiting: Sequence[RequestView]
    running: Sequence[RequestView]
    limits: SchedulerContext


class Scheduler(ABC):
    """Decides which requests compute how many tokens in the next step."""

    @abstractmethod
    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        """Plans one step.

        Must not change its own state: what it learns comes through `observe`. Given equal views and equal own state,
        the plan is equal. If some request runs or waits and nothing is in flight, an empty plan breaks the progress
        rule; one that only swaps somebody out is not empty.

        Returns:
            `ledger.plan()`, or any other plan; it is checked either way.
        """

    @abstractmethod
    def observe(self, event: SchedulerEvent) -> None:
        """Is told what happened, after it was committed. The only place where a scheduler's own state changes."""
