"""The search for a skip set, told of drafts that are right as often as a set deserves."""

from __future__ import annotations

import random

from tokenloom_spec_decode.skip_search import SkipSearch, SkipSet, parts_without


def deserved(skipped: SkipSet) -> float:
    """Attention may go, feed-forward networks are missed; the more the later they stand."""
    return max(0.02, 0.9 - sum(0.02 * layer for layer in skipped.ffn))


def search(num_layers: int, share: float, seed: int) -> SkipSearch:
    found, chance = SkipSearch(num_layers, share, 40_000), random.Random(seed)
    while not found.is_over:
        right = chance.random() < deserved(found.current())
        found.observe(int(right), 1)
        found.advance()
    return found


def test_it_finds_what_can_be_spared() -> None:
    first = SkipSearch(12, 0.4, 1).current()
    assert len(first.attention) + len(first.ffn) == round(0.4 * 24)
    for seed in range(3):
        best = search(12, 0.4, seed).current()
        assert len(best.attention) + len(best.ffn) == round(0.4 * 24)
        assert deserved(best) > deserved(first) + 0.15


def test_equal_outcomes_give_equal_sets() -> None:
    assert search(8, 0.3, 7).current() == search(8, 0.3, 7).current()


def test_the_first_and_the_last_layer_run() -> None:
    trial = SkipSearch(6, 0.9, 10_000)
    for _ in range(100):
        trial.observe(1, 48)
        trial.advance()
        skipped = trial.current()
        assert set(skipped.attention) | set(skipped.ffn) <= {1, 2, 3, 4}


def test_a_window_ends_only_between_proposals() -> None:
    trial = SkipSearch(6, 0.5, 1000)
    trial.observe(100, 200)
    assert trial.trial == 0
    trial.advance()
    assert trial.trial == 1


def test_parts_are_all_but_those_skipped() -> None:
    parts = parts_without(SkipSet((1,), (0, 2)), 3)
    assert (parts.attention, parts.ffn) == ((True, False, True), (False, True, False))
    assert parts.num_parts == 3
