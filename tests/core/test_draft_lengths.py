"""What a draft policy is told of each step, and what the counters say of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import pytest

from tokenloom.batch import RowPlan, RowResult, StepPlan, StepResult
from tokenloom.draft_lengths import DraftLengths
from tokenloom.engine_output import EngineStats
from tokenloom.errors import PluginContractError
from tokenloom.interfaces.draft_policy import DraftPolicy, DraftStep, VerifiedDrafts
from tokenloom.request import RequestView
from tokenloom.testing.draft_policy_suite import SeenRequest
from tokenloom.testing.engine_harness import ChosenDrafts


@final
class _Hearing(DraftPolicy):
    """Remembers the steps that it is told of."""

    def __init__(self) -> None:
        self.steps: list[DraftStep] = []

    def num_drafts(self, request: RequestView, num_running: int) -> int:
        return -1

    def observe(self, verified: Sequence[VerifiedDrafts], duration_s: float) -> None:
        raise AssertionError("observe_step() stands for it")

    def observe_step(self, step: DraftStep) -> None:
        self.steps.append(step)

    def forget(self, request_id: str) -> None:
        """Keeps no state by request."""


def _row(name: str, num_own: int, drafts: tuple[int, ...] = (), parents: tuple[int, ...] = ()) -> RowPlan:
    return RowPlan(name, 10, num_own + len(drafts), drafts, (), True, 4, parents)


PLAN = StepPlan(
    7, (_row("chain", 1, (1, 2, 3)), _row("plain", 1), _row("chunk", 20), _row("tree", 1, (4, 5, 6, 7), (-1, -1, 0, 1)))
)
RESULT = StepResult(
    7,
    (
        RowResult("chain", [1, 2, 9], 2, (8, 8)),
        RowResult("plain", [3], 0, ()),
        RowResult("chunk", [4], 0, (5,)),
        RowResult("tree", [5, 7, 1], 2, ()),
    ),
    {"build": 0.5, "forward": 2.0, "propose": 0.25},
)
VERIFIED = [VerifiedDrafts("chain", 3, 2, 3), VerifiedDrafts("tree", 4, 2, 2)]


def test_a_policy_is_told_what_the_step_was_made_of() -> None:
    policy = _Hearing()
    DraftLengths(policy, "spec_decode.policy=test", EngineStats()).observe(PLAN, RESULT, 3.5)
    assert policy.steps == [
        DraftStep(verified=VERIFIED, duration_s=3.5, num_rows=4, num_own_tokens=23, num_proposed=3, draft_s=0.25)
    ]


def test_a_policy_of_version_1_0_hears_what_it_knows() -> None:
    policy = ChosenDrafts(lambda request, _: 2)
    DraftLengths(policy, "spec_decode.policy=test", EngineStats()).observe(PLAN, RESULT, 3.5)
    assert policy.observed == VERIFIED


def test_counters_tell_how_often_drafts_are_right_at_each_depth() -> None:
    stats = EngineStats()
    lengths = DraftLengths(_Hearing(), "spec_decode.policy=test", stats)
    before = stats.snapshot()
    lengths.observe(PLAN, RESULT, 3.5)
    assert (stats.num_proposals, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 7, 4)
    # Of the tree one path was tried, to its end; of the chain all three.
    assert stats.tried_by_position == {0: 2, 1: 2, 2: 1}
    assert stats.accepted_by_position == {0: 2, 1: 2}
    middle = stats.snapshot()
    lengths.observe(PLAN, RESULT, 3.5)
    assert stats.since(middle)["tried_by_position"] == {0: 2, 1: 2, 2: 1}
    assert stats.since(before)["accepted_by_position"] == {0: 4, 1: 4}
    assert middle.tried_by_position == {0: 2, 1: 2, 2: 1}


def test_a_negative_length_is_refused() -> None:
    lengths = DraftLengths(_Hearing(), "spec_decode.policy=test", EngineStats())
    with pytest.raises(PluginContractError, match=r"policy=test.*num_drafts"):
        lengths.choose([SeenRequest("r", 3, 1)], 1)  # type: ignore[list-item]
