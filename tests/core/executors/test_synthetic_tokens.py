"""Synthetic tokens: pure, spread out, and foreseen as often as asked."""

from __future__ import annotations

from collections import Counter

import pytest

from tokenloom.executors.synthetic_tokens import SyntheticTokens, propose_drafts


def test_tokens_depend_on_seed_choice_and_position_alone() -> None:
    first, second = SyntheticTokens(1000, (0.5,)), SyntheticTokens(1000, (0.9,))
    places = [(seed, choice, position) for seed in (0, 1, -5, 2**62) for choice in (0, 1) for position in range(20)]
    tokens = [first.token(*place) for place in places]
    assert tokens == [second.token(*place) for place in reversed(places)][::-1]
    assert all(0 <= token < 1000 for token in tokens)
    assert len(set(tokens)) > 100


def test_tokens_are_spread_over_the_vocabulary() -> None:
    source = SyntheticTokens(10, (0.5,))
    counts = Counter(source.token(seed, 0, position) for seed in range(100) for position in range(100))
    assert set(counts) == set(range(10))
    # Five standard deviations of a count of 10,000 draws with probability 1/10.
    assert all(abs(count - 1000) < 150 for count in counts.values())


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.7, 1.0])
def test_drafts_are_right_as_often_as_asked_at_each_depth(rate: float) -> None:
    source = SyntheticTokens(50, (0.5, rate))
    for depth, expected in ((0, 0.5), (1, rate), (7, rate)):
        hits = sum(source.is_foreseen(seed, 0, position, depth) for seed in range(100) for position in range(100))
        assert abs(hits / 10_000 - expected) < 0.03
        assert expected not in (0.0, 1.0) or hits == 10_000 * expected


def test_proposals_are_right_where_foreseen_and_wrong_elsewhere() -> None:
    source = SyntheticTokens(50, (0.6,))
    for seed in range(30):
        drafts = propose_drafts(source, 50, seed, 0, 5, 4)
        truth = [source.token(seed, 0, 5 + depth) for depth in range(4)]
        foreseen = [source.is_foreseen(seed, 0, 5 + depth, depth) for depth in range(4)]
        assert [draft == token for draft, token in zip(drafts, truth, strict=True)] == foreseen
        assert all(0 <= draft < 50 for draft in drafts)
