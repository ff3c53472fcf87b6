"""Contract `scheduler` 1.1: who gets how many tokens in a step.

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

from tokenloom.batch import PreemptMode, SchedulePlan
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, PluginConfig
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
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_usable_blocks: int
    preempt_mode: Literal["recompute", "swap", "cheaper"] = "recompute"
    partial_preemption: bool = False


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


@dataclass(frozen=True, slots=True)
class Grant:
    """A reservation that holds within this step's ledger.

    Attributes:
        request_id: whose.
        num_tokens: new tokens.
        num_new_blocks: blocks taken from the pool, over all KV groups.
        num_cached_tokens: of a waiting request, tokens found in the prefix cache (0 for running ones).
    """

    request_id: str
    num_tokens: int
    num_new_blocks: int
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a reservation failed; nothing was taken.

    Attributes:
        resource: "tokens", "slots", "blocks" or "prefix". A minor version may add more; take an unknown one as "not
            now". "prefix", of a waiting request: another one, granted before in this step, computes the next tokens
            that both share; they will be found in the cache when the step has landed. Others may start meanwhile.
        missing: how many units lack.
        pending: units that are being freed and come by themselves when a step or transfer lands. Preempting more is
            pointless once pending >= missing.
    """

    resource: str
    missing: int
    pending: int = 0


Savepoint = int
"""A mark in the ledger's journal; see `Ledger.savepoint`."""


class Ledger(ABC):
    """A scratch transaction over one step's tokens, slots and blocks. Counts only: block ids are assigned at commit."""

    @property
    @abstractmethod
    def remaining_tokens(self) -> int:
        """Tokens left in the step's budget."""

    @property
    @abstractmethod
    def remaining_slots(self) -> int:
        """Requests that may still join the running ones."""

    @property
    @abstractmethod
    def available_blocks(self) -> int:
        """Blocks that a reservation could take now, free or cached and unreferenced, in the tightest pool."""

    @property
    @abstractmethod
    def num_preempted(self) -> int:
        """Preemptions recorded in this step."""

    @abstractmethod
    def cached_tokens(self, request: RequestView) -> int:
        """Tokens of a waiting request found in the prefix cache now, or waiting in host memory; 0 for a running one.

        Does not pin them.
        """

    @abstractmethod
    def need(self, request: RequestView) -> int:
        """Tokens still to compute: num_tokens + placeholders + num_drafts - computed - in flight.

        Tokens found in the prefix cache count as computed.
        """

    @abstractmethod
    def is_scheduled(self, request: RequestView) -> bool:
        """Whether the request holds a grant in this step."""

    @abstractmethod
    def is_preempted(self, request: RequestView) -> bool:
        """Whether the request was preempted in this step."""

    @abstractmethod
    def reserve(self, request: RequestView, num_tokens: int) -> Grant | Shortfall:
        """Tries to schedule `num_tokens` new tokens of a request.

        A waiting request also takes a slot, and pins the cached blocks it found: they stop being evictable at once.

        Args:
            request: one of the view's, not preempted in this step and without a grant.
            num_tokens: at least 1 and at most `need(request)`.

        Returns:
            A Grant, or a Shortfall and nothing is changed.

        Raises:
            ValueError: num_tokens is out of range, or the request already has a grant or was preempted.
        """

    @abstractmethod
    def preempt(self, request: RequestView, mode: PreemptMode = PreemptMode.RECOMPUTE, keep_blocks: int = 0) -> int:
        """Takes a running request's memory back (or what a waiting one kept) and cancels its grant.

        Recomputed blocks are available at once, unless another request or a step in flight still uses them; swapped
        ones are pending until the transfer lands. A swap that the host memory has no room for becomes a recompute,
        which is counted. Of a request in flight, the token still counts when it lands; until then it is in no view.

        Args:
            request: the victim.
            mode: what happens to its KV.
            keep_blocks: keep at most this many leading blocks per KV group; the core keeps the longest prefix up to
                there that is valid in every group.

        Returns:
            Number of blocks that became available now.

        Raises:
            ValueError: the request holds no memory or was preempted already, or the mode is not supported here.
        """

    def preempt_mode(self, request: RequestView) -> PreemptMode:  # noqa: ARG002
        """What the configuration wants to happen to this victim's KV; to be handed to `preempt`."""
        return PreemptMode.RECOMPUTE

    def keep_blocks(self, request: RequestView, num_needed: int) -> int:  # noqa: ARG002
        """How many leading blocks this victim may keep, if `num_needed` are needed; to be handed to `preempt`."""
        return 0

    def keepers(self) -> Sequence[RequestView]:
        """Waiting requests that kept blocks, the last one preempted first: to be preempted again before others are.

        Where nobody runs, they may hold all the memory that somebody needs to start.
        """
        return ()

    @abstractmethod
    def savepoint(self) -> Savepoint:
        """Marks the current state."""

    @abstractmethod
    def rollback(self, savepoint: Savepoint) -> None:
        """Undoes every reserve and preempt since the mark."""

    @abstractmethod
    def plan(self) -> SchedulePlan:
        """The plan that the recorded grants and preemptions make, grants in the order in which they were reserved."""


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
