"""Tests of drafters with KV memory of their own: their drafts must not show what has become of that memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import pytest

from tokenloom.batch import PreemptMode
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext
from tokenloom.interfaces.spec_decode import DraftBatch, Drafter, DrafterNeeds, DraftPolicy, Proposal, VerifiedDrafts
from tokenloom.request import RequestView
from tokenloom.testing.drafter_rig import DrafterRig
from tokenloom.testing.engine_harness import PreemptAt, build_fcfs

__all__ = ["DraftMemorySuite"]


def _preempting(mode: PreemptMode, context: SchedulerContext) -> Scheduler:
    """Preempts every second request several times, though there is memory for all."""
    return PreemptAt(build_fcfs(context), {f"r{number}": [1, 6, 11] for number in (1, 3, 5)}, mode)


_PAUSED = "with drafts off for some steps"
_Key = tuple[tuple[int, ...], int, bool]
_TROUBLES: dict[str, dict[str, Any]] = {
    "in chunks of 5 tokens": {"budget": 5, "block_size": 2, "cache": "none"},
    "preempted, and found in the cache": {"scheduler": partial(_preempting, PreemptMode.RECOMPUTE)},
    "preempted by swap": {
        "scheduler": partial(_preempting, PreemptMode.SWAP),
        "block_size": 1,
        "preempt_mode": "swap",
    },
    "preempted in part": {"num_blocks": 20, "partial_preemption": True},
    _PAUSED: {},
    f"{_PAUSED}, and preempted": {"scheduler": partial(_preempting, PreemptMode.RECOMPUTE), "block_size": 2},
    f"{_PAUSED}, and preempted by swap": {
        "scheduler": partial(_preempting, PreemptMode.SWAP),
        "block_size": 1,
        "preempt_mode": "swap",
    },
    f"{_PAUSED}, and preempted in part": {"num_blocks": 20, "partial_preemption": True},
}
_LEAST_CALLS = 10
_PERIOD, _DRAFTING = 7, 3
"""Of so many steps, those that draft."""
_SHARE_OF_TIES = 50
"""One draft in so many may differ: two tokens that are nearly as likely, and sums in another order."""


class DraftMemorySuite(DrafterRig):
    """The part of `SpecDecodeSuite` that is about `DraftBatch.memory`."""

    def test_groups_of_a_drafter_are_legal(self) -> None:
        """`needs()` asked for KV memory of a shape that no layer has, or of heads that differ from group to group."""
        groups = self.drafter().needs().kv_groups
        for group in groups:
            sizes = (group.num_layers, group.num_kv_heads, group.head_dim, group.num_heads or group.num_kv_heads)
            assert min(sizes) >= 1, f"{group}: layers, heads and head_dim are at least 1"
            assert sizes[3] % sizes[1] == 0, f"{group}: num_heads is a multiple of num_kv_heads"
            assert group.lookahead >= 0, f"{group}: lookahead is a count"
            assert group.window is None or group.window >= 1, f"{group}: a window is at least 1"
        heads = {(group.num_heads or group.num_kv_heads, group.num_kv_heads, group.head_dim) for group in groups}
        assert len(heads) <= 1, f"the groups have heads of {len(heads)} shapes: {sorted(heads)}"

    @pytest.mark.parametrize("trouble", sorted(_TROUBLES))
    def test_drafts_do_not_depend_on_what_became_of_memory(self, trouble: str) -> None:
        """A request got other drafts behind the same tokens when it was cut into chunks, preempted, or found a prefix.

        So an entry of the drafter's KV was missing or stale. Every call writes the entries of the new verified tokens
        of *all* its rows, those of prompt chunks and those without drafts; what lies behind the frontier was a guess,
        and `forget` means that nothing of a request's memory is as it was.
        """
        if not self.drafter().needs().kv_groups:
            pytest.skip("the plugin has no KV memory of its own")
        if "shared_statistics" in self.capabilities.flags:
            pytest.skip("the plugin declares shared_statistics: earlier requests may show")
        plain = self._proposals({"cache": "none"})
        troubled = self._proposals(_TROUBLES[trouble], is_paused=trouble.startswith(_PAUSED))
        common = plain.keys() & troubled.keys()
        assert len(common) > _LEAST_CALLS, f"only {len(common)} calls to compare"
        wrong = [key for key in common if plain[key] != troubled[key]]
        if len(wrong) > len(common) // _SHARE_OF_TIES:
            key = min(wrong, key=lambda key: len(key[0]))
            raise AssertionError(
                f"{len(wrong)} of {len(common)} proposals differ {trouble}; behind {list(key[0])}: {plain[key]} became "
                f"{troubled[key]} (token ids, parents)"
            )

    def _proposals(self, settings: dict[str, Any], *, is_paused: bool = False) -> dict[_Key, object]:
        """What is proposed behind which tokens, by (tokens, max_drafts, chain_only)."""
        recorder, policy = _Recorder(self.drafter()), self.policy()
        if policy is not None and is_paused:
            policy = _Pausing(policy)
        engine = self.expect_plain_output(self.settings_of(**settings), drafter=recorder, policy=policy)
        is_preempting = "scheduler" in settings or "num_blocks" in settings
        assert not is_preempting or engine.engine.stats.num_preemptions > 0, "nothing was preempted"
        return recorder.proposed


@final
class _Recorder(Drafter):
    """Passes calls on and keeps the proposals."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.proposed: dict[_Key, object] = {}

    def needs(self) -> DrafterNeeds:
        return self._inner.needs()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        proposals = self._inner.propose(batch)
        rows = zip(batch.token_ids, batch.max_drafts, batch.chain_only, proposals, strict=True)
        for token_ids, max_drafts, is_chain, proposal in rows:
            if max_drafts:
                self.proposed[tuple(token_ids.tolist()), max_drafts, is_chain] = (proposal.token_ids, proposal.parents)
        return proposals

    def forget(self, request_ids: Sequence[str]) -> None:
        self._inner.forget(request_ids)


@final
class _Pausing(DraftPolicy):
    """Asks another policy in some steps, and in those between wants no drafts of anybody."""

    def __init__(self, inner: DraftPolicy) -> None:
        self._inner = inner
        self._num_steps = 0

    def num_drafts(self, request: RequestView, num_running: int) -> int:
        return self._inner.num_drafts(request, num_running) if self._num_steps % _PERIOD < _DRAFTING else 0

    def observe(self, verified: Sequence[VerifiedDrafts], duration_s: float) -> None:
        self._num_steps += 1
        self._inner.observe(verified, duration_s)

    def forget(self, request_id: str) -> None:
        self._inner.forget(request_id)
