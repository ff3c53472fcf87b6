"""What crosses between scheduler, core and executor in one step: plans down, results up. Plain host data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from tokenloom.sampling_params import SamplingParams
from tokenloom.unguarded import unguarded

if TYPE_CHECKING:
    from tokenloom.interfaces.contract import PluginChoice
    from tokenloom.interfaces.logits import LogitsConstraint

__all__ = [
    "ALL_FORBIDDEN",
    "BlockCopy",
    "BlockExport",
    "BlockImport",
    "BlockTableUpdate",
    "BlockTransfers",
    "NewRow",
    "PreemptMode",
    "Preemption",
    "RowPlan",
    "RowResult",
    "SchedulePlan",
    "StepPlan",
    "StepResult",
    "TokenLogprobs",
    "draft_paths",
    "tree_depths",
]

ALL_FORBIDDEN = "every token is forbidden by"
"""In a row's error: its own options leave no token to choose. A server tells such a request that it is at fault."""


class PreemptMode(StrEnum):
    """What happens to a victim's KV: dropped and computed again, or moved to host memory and back."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


@dataclass(frozen=True, slots=True)
class Preemption:
    """A request that gives its memory back. `keep_blocks`: leading blocks per KV group that it keeps, at most."""

    request_id: str
    mode: PreemptMode = PreemptMode.RECOMPUTE
    keep_blocks: int = 0


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What a scheduler proposes for one step.

    Attributes:
        num_scheduled_tokens: request_id -> new tokens to compute (>= 1), in batch order. Of a request with drafts, the
            count beyond its own tokens verifies that many drafts.
        preemptions: victims, none of which is scheduled in the same step.
    """

    num_scheduled_tokens: Mapping[str, int] = field(default_factory=dict)
    preemptions: tuple[Preemption, ...] = ()


@dataclass(frozen=True, slots=True)
class NewRow:
    """Everything an executor needs to know about a request that joins (or comes back after preemption).

    Attributes:
        token_ids, num_prompt_tokens: prompt and output so far, and how many of them are the prompt.
        params, seed, choice_index: for sampling; noise depends on (seed, choice_index, output position) alone.
        forbidden_stop_ids: token ids masked until min_tokens outputs exist.
        bad_words: token id sequences that must not appear.
        processors: logits processors with this request's settings, in order.
        constraint: in its initial state, or None. The executor forks it, and moves its own cursor only.
    """

    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    choice_index: int
    forbidden_stop_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    processors: tuple[PluginChoice, ...] = ()
    constraint: LogitsConstraint | None = None


@dataclass(frozen=True, slots=True)
class BlockTableUpdate:
    """How a request's block table changes in one KV group: table := [0] * num_null + old[num_null:num_kept] + new.

    Attributes:
        num_null_blocks: leading entries that have left the window, by the landed frontier; 0 in groups without one.
        num_kept_blocks: entries of the old table that remain, null ones included; of a `new` row, num_null_blocks.
        new_block_ids: ids appended.
    """

    num_null_blocks: int = 0
    num_kept_blocks: int = 0
    new_block_ids: tuple[int, ...] = ()

    @staticmethod
    @lru_cache(maxsize=4096)
    def unchanged(num_null_blocks: int, num_kept_blocks: int) -> BlockTableUpdate:
        """The update of a table that gets no blocks, as most do in a step; made once for all of the same length."""
        return BlockTableUpdate(num_null_blocks, num_kept_blocks)


@unguarded
@dataclass(frozen=True, slots=True)
class RowPlan:
    """One request's part of a step.

    Attributes:
        request_id: whose.
        num_computed_tokens: slot index of the first new token: tokens computed, those in flight included.
        num_scheduled_tokens: new tokens, drafts included.
        draft_token_ids: the drafts verified in this step: the last new tokens.
        draft_parents: per draft the index of its parent among the drafts, -1 for a child of the last real token;
            empty for a chain. Parents come first, so a cut list is still a tree. Draft i lies at slot
            num_computed + own tokens + i, at position slot of the last own token + depth.
        block_updates: per KV group, how the request's block table changes before this step.
        samples: whether the last real token is among the new ones, so that the step yields tokens.
        max_drafts: most drafts to propose for the next step; 0 proposes none.
        prompt_logprob_slots: (first, end), slots of this step behind each of which stands a token of the prompt whose
            logprobs are wanted: tokens first + 1 .. end. None when first == end.
        new: set when the executor does not know the request.
    """

    request_id: str
    num_computed_tokens: int
    num_scheduled_tokens: int
    draft_token_ids: tuple[int, ...]
    block_updates: tuple[BlockTableUpdate, ...]
    samples: bool
    max_drafts: int = 0
    draft_parents: tuple[int, ...] = ()
    prompt_logprob_slots: tuple[int, int] = (0, 0)
    new: NewRow | None = None


def tree_depths(parents: Sequence[int]) -> list[int]:
    """Depth of each node of a draft tree, 1 for children of the last real token; parents come before their children."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


def draft_paths(row: RowPlan) -> list[tuple[int, ...]]:
    """Per logits row of a request, the drafts that it lies behind: none for the first, then each draft's own path."""
    parents = row.draft_parents or range(-1, len(row.draft_token_ids) - 1)
    paths: list[tuple[int, ...]] = [()]
    for token_id, parent in zip(row.draft_token_ids, parents, strict=True):
        paths.append((*paths[parent + 1], token_id))
    return paths


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One block per KV group whose content is copied to another one: the unfinished end of a shared prompt."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockExport:
    """KV of a preempted request that moves to host memory. `block_ids`: per KV group, in order of its table."""

    request_id: str
    block_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class BlockImport:
    """KV that comes back from host memory, which then forgets it.

    Attributes:
        request_id: of an earlier export.
        sources: per KV group, which of the exported blocks, counted from 0. The others are not needed any more.
        block_ids: per KV group, as many blocks to fill.
    """

    request_id: str
    sources: tuple[tuple[int, ...], ...]
    block_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class BlockTransfers:
    """KV that moves before a step: first exports to host memory, then copies, then imports from host memory.

    Attributes:
        exports: their blocks may be filled anew once the step has landed.
        imports: no row of the step reads their blocks before they are filled.
        dropped: requests whose KV in host memory is not needed any more.
        copies: all sources are read as they were before the step.
    """

    exports: tuple[BlockExport, ...] = ()
    imports: tuple[BlockImport, ...] = ()
    dropped: tuple[str, ...] = ()
    copies: tuple[BlockCopy, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.exports or self.imports or self.dropped or self.copies)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step for the executor.

    Attributes:
        step_id: grows from step to step.
        rows: in batch order; none in a step that only moves KV to host memory.
        removed: requests to forget first (ended or preempted).
        transfers: what moves between device and host memory.
    """

    step_id: int
    rows: tuple[RowPlan, ...]
    removed: tuple[str, ...] = ()
    transfers: BlockTransfers = BlockTransfers()

    @property
    def num_tokens(self) -> int:
        """New tokens over all rows."""
        return sum([row.num_scheduled_tokens for row in self.rows])


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the model's raw distribution (natural log).

    Attributes:
        token_id, logprob: the token emitted, or the prompt's, and its log-probability.
        top: (token_id, logprob) of the most probable tokens, best first.
        rank: the token's place among all tokens, 1 for the most probable; None where it was not counted.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


@unguarded
@dataclass(frozen=True, slots=True)
class RowResult:
    """One request's outcome of a step; `token_ids` is empty when the row did not sample.

    Attributes:
        request_id: whose.
        token_ids: tokens emitted in order: accepted drafts, then the token at the first mismatch or the bonus token.
        num_accepted_tokens: how many of them were drafts.
        next_draft_token_ids: proposals for the next step.
        next_draft_parents: as in `RowPlan.draft_parents`.
        logprobs: one per token emitted, if asked for.
        prompt_logprobs: one for each of the row's `prompt_logprob_slots`.
        error: set when this request alone failed behind `token_ids` (its logits were NaN, say), and no other. All
            tokens before it are then accepted drafts. A stop among them ends the request without the error.
    """

    request_id: str
    token_ids: list[int]
    num_accepted_tokens: int = 0
    next_draft_token_ids: tuple[int, ...] = ()
    next_draft_parents: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step yields.

    Attributes:
        step_id: of the plan.
        rows: in plan order.
        times_s: seconds by phase, in the order of the phases, which follow each other from the launch on; "build" is
            the host's work before the forward pass, the others are free ("forward", "logits", "sample", or "verify"
            where drafts are, "propose", "results"). "transfer" is the time of the plan's transfers, which the core
            learns from.
        lost: requests whose export failed, e.g. because the host has no memory left; they are computed again.
    """

    step_id: int
    rows: tuple[RowResult, ...]
    times_s: Mapping[str, float] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
