"""How many tokens to draft: asks the chosen `spec_decode.policy`, checks its answers, tells it what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.batch import RowPlan, RowResult, StepPlan, StepResult, tree_depths
from tokenloom.engine_output import EngineStats
from tokenloom.errors import PluginContractError
from tokenloom.interfaces.draft_policy import DraftPolicy, DraftStep, VerifiedDrafts
from tokenloom.plugin_guard import plugin_call
from tokenloom.request import Request

__all__ = ["DraftLengths"]


@final
class DraftLengths:
    """The draft policy of one engine; without one, nothing is ever drafted."""

    def __init__(self, policy: DraftPolicy | None, plugin: str, stats: EngineStats) -> None:
        self._policy = policy
        self._plugin = plugin
        self._stats = stats

    def choose(self, requests: Sequence[Request], num_running: int) -> dict[str, int]:
        """Most drafts to propose for each request after the coming step; never more than it has room for."""
        policy = self._policy
        if policy is None:
            return dict.fromkeys([request.request_id for request in requests], 0)
        with plugin_call(self._plugin, "num_drafts() returns a count"):
            counts = [policy.num_drafts(request, num_running) for request in requests]
        for request, count in zip(requests, counts, strict=True):
            if not isinstance(count, int) or count < 0:
                detail = f"{request.request_id}: {count!r}"
                raise PluginContractError(self._plugin, "num_drafts() returns a count", detail)
        return {
            request.request_id: min(count, max(0, request.max_total_tokens - request.num_tokens - 1)) if count else 0
            for request, count in zip(requests, counts, strict=True)
        }

    def observe(self, plan: StepPlan, result: StepResult, duration_s: float) -> None:
        """Counts and reports what was verified in a step."""
        if self._policy is None:
            return
        verified = [_verified(row, r) for row, r in zip(plan.rows, result.rows, strict=True) if row.draft_token_ids]
        self._count(verified)
        step = DraftStep(
            verified=verified,
            duration_s=duration_s,
            num_rows=len(plan.rows),
            num_own_tokens=plan.num_tokens - sum([drafts.num_drafts for drafts in verified]),
            num_proposed=sum([len(row.next_draft_token_ids) for row in result.rows]),
            draft_s=result.times_s.get("propose", 0.0),
        )
        with plugin_call(self._plugin, "observe_step() takes every step"):
            self._policy.observe_step(step)

    def forget(self, request_id: str) -> None:
        """Drops the state of a request that ended."""
        if self._policy is not None:
            with plugin_call(self._plugin, "forget() takes every request"):
                self._policy.forget(request_id)

    def _count(self, verified: Sequence[VerifiedDrafts]) -> None:
        stats = self._stats
        stats.num_proposals += len(verified)
        tried, accepted = stats.tried_by_position, stats.accepted_by_position
        for drafts in verified:
            num_accepted = drafts.num_accepted_tokens
            stats.num_draft_tokens += drafts.num_drafts
            stats.num_accepted_tokens += num_accepted
            for position in range(min(num_accepted + 1, drafts.max_depth)):
                tried[position] = tried.get(position, 0) + 1
            for position in range(num_accepted):
                accepted[position] = accepted.get(position, 0) + 1


def _verified(row: RowPlan, result: RowResult) -> VerifiedDrafts:
    num_drafts = len(row.draft_token_ids)
    depth = max(tree_depths(row.draft_parents), default=num_drafts)
    return VerifiedDrafts(row.request_id, num_drafts, result.num_accepted_tokens, depth)
