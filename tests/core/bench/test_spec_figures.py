"""Figures of drafters, from runs that were made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokenloom.bench.spec_figures import (
    category_figures,
    category_means,
    expected_tokens,
    plain_figures,
    speculation_theory,
)
from tokenloom.bench.spec_run import CategoryRun

PLAIN = CategoryRun(
    num_requests=2,
    num_failed=0,
    num_output_tokens=202,
    wall_s=22.0,
    running_s=22.0,
    decode_s=20.0,
    num_decode_tokens=200,
    num_decode_steps=200,
    propose_s=0.0,
    num_proposals=0,
    num_draft_tokens=0,
    num_accepted_tokens=0,
    tried_by_position={},
    accepted_by_position={},
    token_ids=[[1] * 101, [2] * 101],
)
# 100 steps of 0.13 s, each with two drafts: of 100 first ones 70 right, of these 70's second ones 30.
DRAFTING = replace(
    PLAIN,
    wall_s=15.0,
    running_s=15.0,
    decode_s=13.0,
    num_decode_steps=100,
    propose_s=1.0,
    num_proposals=100,
    num_draft_tokens=200,
    num_accepted_tokens=100,
    tried_by_position={0: 100, 1: 70},
    accepted_by_position={0: 70, 1: 30},
)


def test_figures_beside_no_drafts() -> None:
    figures = category_figures([DRAFTING], [PLAIN])
    assert figures["speedup"] == pytest.approx(22 / 15)
    assert figures["decode_speedup"] == pytest.approx(20 / 13)
    assert figures["acceptance_length"] == 2.0
    assert figures["acceptance_by_position"] == pytest.approx([0.7, 30 / 70])
    assert figures["accepted_by_position"] == pytest.approx([0.7, 0.3])
    assert figures["drafting_share"] == pytest.approx(1 / 15)
    assert figures["num_equal_answers"] == 2
    assert category_figures([replace(DRAFTING, token_ids=[[1] * 101, [3]])], [PLAIN])["num_equal_answers"] == 1


def test_repetitions_are_compared_pair_by_pair() -> None:
    slow = replace(PLAIN, wall_s=44.0)
    figures = category_figures([DRAFTING, replace(DRAFTING, wall_s=20.0), DRAFTING], [PLAIN, slow, PLAIN])
    assert figures["speedups"] == pytest.approx([22 / 15, 2.2, 22 / 15])
    assert figures["speedup"] == pytest.approx(22 / 15)
    assert plain_figures([PLAIN, slow, PLAIN])["wall_s"] == 22.0


def test_each_category_counts_alike_in_their_mean() -> None:
    """A mean in each repetition, then the median of repetitions: what was slow in one was so for all categories."""
    short = replace(DRAFTING, num_output_tokens=20, wall_s=1.0, num_decode_tokens=20, decode_s=1.0)
    plain = replace(PLAIN, num_output_tokens=20, wall_s=2.0, num_decode_tokens=20, decode_s=3.0)
    long = category_figures([DRAFTING, DRAFTING, DRAFTING], [PLAIN, replace(PLAIN, wall_s=44.0), PLAIN])
    means = category_means([long, category_figures([short] * 3, [plain] * 3)])
    assert means["speedups"] == pytest.approx([(22 / 15 + 2) / 2, (44 / 15 + 2) / 2, (22 / 15 + 2) / 2])
    assert means["speedup"] == pytest.approx((22 / 15 + 2) / 2)
    assert means["decode_speedup"] == pytest.approx((20 / 13 + 3) / 2)


def test_more_tokens_are_no_slower_answer() -> None:
    """Answers of another length: tokens per second count, not seconds."""
    longer = replace(DRAFTING, num_output_tokens=404, wall_s=30.0)
    assert category_figures([longer], [PLAIN])["speedup"] == pytest.approx(22 / 15)


def test_theory_is_the_formula() -> None:
    theory = speculation_theory(DRAFTING, PLAIN)
    assert theory is not None
    rate, cost = 100 / 170, 1.0 / 200 / 0.1
    assert theory["rate"] == pytest.approx(rate)
    assert theory["drafts"] == 2.0
    assert theory["drafted_share"] == 1.0
    assert theory["draft_cost"] == pytest.approx(cost)
    assert theory["predicted"] == pytest.approx((1 - rate**3) / ((1 - rate) * (2 * cost + 1)))
    # A step takes 1.3 plain ones: 0.1 for two drafts, so the rest is what verifying them costs.
    assert theory["verify_cost"] == pytest.approx(0.1)
    assert theory["predicted_with_verification"] == pytest.approx((1 - rate**3) / (1 - rate) / 1.3)


def test_steps_without_drafts_count_as_they_are() -> None:
    half = replace(
        DRAFTING, num_proposals=50, num_draft_tokens=100, num_accepted_tokens=50, tried_by_position={0: 50, 1: 35}
    )
    theory = speculation_theory(half, PLAIN)
    assert theory is not None
    rate = 50 / 85
    assert theory["drafted_share"] == 0.5
    assert theory["draft_cost"] == pytest.approx(0.1)
    assert theory["predicted"] == pytest.approx((0.5 + 0.5 * (1 - rate**3) / (1 - rate)) / 1.1)


def test_requests_that_run_side_by_side_wait_for_each_others_drafts() -> None:
    """Four at a time: the same step serves all, and so does the time of proposing."""
    crowd = replace(DRAFTING, wall_s=15.0 / 4, propose_s=1.0 / 4)
    together, alone = speculation_theory(crowd, PLAIN), speculation_theory(DRAFTING, PLAIN)
    assert together == pytest.approx(alone)


def test_where_nothing_was_drafted_there_is_no_theory() -> None:
    assert speculation_theory(PLAIN, PLAIN) is None
    silent = category_figures([PLAIN], [PLAIN])
    assert silent["theory"] is None
    assert silent["acceptance_by_position"] == []
    assert silent["speedup"] == 1.0
    nothing = replace(PLAIN, num_output_tokens=2, decode_s=0.0, num_decode_tokens=0, num_decode_steps=0)
    assert category_figures([nothing], [nothing])["decode_speedup"] == 0.0


@pytest.mark.parametrize(("rate", "drafts", "tokens"), [(0.0, 4, 1.0), (1.0, 4, 5.0), (0.6, 3, 2.176), (0.8, 5, 3.689)])
def test_expected_tokens(rate: float, drafts: int, tokens: float) -> None:
    assert expected_tokens(rate, drafts) == pytest.approx(tokens, abs=5e-4)


def test_categories_add_up() -> None:
    total = CategoryRun.sum_of([PLAIN, DRAFTING, DRAFTING])
    assert total.num_requests == 6
    assert total.wall_s == 52.0
    assert total.tried_by_position == {0: 200, 1: 140}
    assert total.token_ids == PLAIN.token_ids * 3
    assert DRAFTING.tried_by_position == {0: 100, 1: 70}, "the parts stay as they were"
