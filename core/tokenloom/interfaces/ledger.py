"""Part of contract `scheduler` 1.3: the scratch transaction on which a step is planned, and what it answers.

Before the first release, 1.3 took `available_blocks` away: `spare_blocks` answers it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom.batch import PreemptMode, SchedulePlan
from tokenloom.request import RequestView

__all__ = ["Grant", "Ledger", "Savepoint", "Shortfall"]


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
            that both share; they will be found in the cache when the step has landed. Others may start meanwhile,
            but nothing here keeps what this one will need then; `PolicyScheduler` does.
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
    def spare_blocks(self) -> int:
        """How many blocks more every KV group could take now; groups that share a pool share what is available."""

    @abstractmethod
    def num_blocks(self, request: RequestView) -> int:
        """Blocks that a request's table spans in each KV group, those of its grant and of a reservation included.

        A table of n slots spans ceil(n / block_size) blocks, whether they are shared with other requests or have left
        a window. 0 for a waiting request without a grant.
        """

    @abstractmethod
    def num_own_blocks(self, request: RequestView) -> int:
        """Blocks per KV group that come back when a request ends, at least: nobody else holds them now.

        Asking takes time in proportion to the blocks that it holds.
        """

    @abstractmethod
    def num_granted_tokens(self, request: RequestView) -> int:
        """Tokens of a request's grant in this step; 0 without one."""

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

    def reserve_next(self, request: RequestView) -> bool:  # noqa: ARG002
        """Does what `reserve(request, 1)` does, if that is all that a running request needs and it takes no block.

        Most of a step's requests decode within a block; for them, this takes a fraction of the time.

        Returns:
            Whether the request is scheduled now. False if it is anything else, and nothing is changed: ask `reserve`.
        """
        return False

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
