"""Calls the drafter after each step: for drafts, and to keep KV memory of its own in step with the target's.

A drafter with such memory must hear of every verified token. While nobody wants drafts its calls are put off:

    step   s                s + 1            s + 2                            s + 3
           nobody drafts    nobody drafts    r0 has left                      r1 wants drafts
           tokens wait      tokens wait      all that wait, then it may go    all that wait, then those of s + 3

Whatever is put off is made good before anything reads, moves or gives away the memory in question. So nobody can tell.
Only what nobody can read any more is never told: of a request that leaves, the tokens behind its last full block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from tokenloom.batch import RowPlan, StepPlan
from tokenloom.batch_state import BatchState
from tokenloom.draft_passes import DraftPasses
from tokenloom.interfaces.spec_decode import DraftBatch, Drafter, DraftSampling, Proposal
from tokenloom.plugin_guard import plugin_call
from tokenloom.proposal_check import check_proposals
from tokenloom.sampled_rows import SampledRows, num_verified, verified_states
from tokenloom.waiting_states import NewTokens, WaitingStates

__all__ = ["DraftProposals", "DraftTask"]


@final
@dataclass(frozen=True, slots=True)
class DraftTask:
    """What the calls are made of.

    Attributes:
        drafter: the plugin; `plugin` names it in errors.
        state: the requests.
        memory: KV memory of the drafter's own layers, or the target's if it runs the target's layers.
        takes_trees: whether drafts may be trees.
        vocab_size, device: of the target.
        max_waiting: most tokens whose states wait; 0 puts nothing off.
    """

    drafter: Drafter
    plugin: str
    state: BatchState
    memory: DraftPasses | None
    takes_trees: bool
    vocab_size: int
    device: torch.device
    max_waiting: int


@final
class DraftProposals:
    """The drafter's calls, step after step."""

    def __init__(self, task: DraftTask) -> None:
        self._task = task
        self._has_own_memory = task.memory is not None and not task.drafter.needs().target_kv
        # A block that has left its window is gone, and so is the place of a token that waited too long.
        has_windows = any(group.window is not None for group in task.drafter.needs().kv_groups)
        self._waiting = WaitingStates(task.max_waiting if self._has_own_memory and not has_windows else 0)
        self._lookahead = min((group.lookahead for group in task.drafter.needs().kv_groups), default=0)

    def settle(self, plan: StepPlan) -> bool:
        """Before a step: tells the drafter of all that waits if the step must not come before that.

        Returns:
            Whether it was called.
        """
        leaving = [request_id for request_id in plan.removed if request_id in self._waiting]
        for request_id in leaving:
            if not (plan.transfers or self._fills_blocks(request_id)):
                self._waiting.drop(request_id)
        if not len(self._waiting):
            return False
        is_asked = any(row.max_drafts for row in plan.rows)
        is_leaving = any(request_id in self._waiting for request_id in leaving)
        if not (plan.transfers or is_asked or is_leaving) and self._waiting.has_room(plan.num_tokens):
            return False
        # All in one call: a request may have found a prefix whose entries wait, too.
        late = self._waiting.take()
        self._call(late, [0] * len(late.request_ids))
        return True

    def propose(
        self, plan: StepPlan, first_rows: Sequence[int], sampled: SampledRows, captured: Mapping[int, torch.Tensor]
    ) -> dict[str, Proposal] | None:
        """Asks for drafts after a step.

        Args:
            plan: of the step.
            first_rows: per row of the plan, its first row among the step's tokens.
            sampled: what the step came to; its tokens are in the state.
            captured: hidden states of the step, as `DrafterNeeds.hidden_layers` asks.

        Returns:
            By request id, maybe without drafts; None if there was nothing to do.
        """
        limits = [row.max_drafts if row.max_drafts and sampled.goes_on(row.request_id) else 0 for row in plan.rows]
        is_asked = any(limits)
        if not (is_asked or self._has_own_memory):
            return None
        places = range(len(limits)) if self._has_own_memory else [i for i, limit in enumerate(limits) if limit]
        rows = [plan.rows[place] for place in places]
        new = _new_tokens(rows, [first_rows[place] for place in places], sampled, captured)
        if is_asked or not self._waiting.has_room(new.num_tokens):
            return self._call(new, [limits[place] for place in places])
        self._waiting.add(new)
        return {}

    def _fills_blocks(self, request_id: str) -> bool:
        """Whether tokens of a request that wait belong to full blocks, which others or itself may find again."""
        waiting, size = self._waiting.positions(request_id), self._task.state.block_size
        return waiting.start < (waiting.stop - self._lookahead) // size * size

    def _call(self, new: NewTokens, max_drafts: Sequence[int]) -> dict[str, Proposal]:
        task, state, ids = self._task, self._task.state, new.request_ids
        cu_hidden = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(new.counts, out=cu_hidden[1:])
        batch = DraftBatch(
            request_ids=ids,
            token_ids=[state.tokens(i) for i in ids],
            num_prompt_tokens=[state.info(i).num_prompt_tokens for i in ids],
            max_drafts=max_drafts,
            chain_only=[not task.takes_trees or state.constraint(i) is not None for i in ids],
            first_positions=new.firsts,
            hidden_states=new.states,
            cu_hidden=cu_hidden,
            sampling=[self._sampling(i) for i in ids],
            memory=task.memory,
        )
        with plugin_call(task.plugin, "propose() returns proposals"):
            proposals = task.drafter.propose(batch)
        check_proposals(task.plugin, proposals, batch, task.vocab_size, task.device)
        return dict(zip(ids, proposals, strict=True))

    def _sampling(self, request_id: str) -> DraftSampling:
        info = self._task.state.info(request_id)
        num_tokens = len(self._task.state.tokens(request_id))
        return DraftSampling(info.params, info.seed, info.choice_index, num_tokens - info.num_prompt_tokens)


def _new_tokens(
    rows: Sequence[RowPlan], first_rows: Sequence[int], sampled: SampledRows, captured: Mapping[int, torch.Tensor]
) -> NewTokens:
    counts = [num_verified(row, sampled) for row in rows]
    return NewTokens(
        request_ids=[row.request_id for row in rows],
        firsts=[row.num_computed_tokens for row in rows],
        counts=counts,
        states=verified_states(rows, first_rows, sum(counts), sampled, captured),
    )
