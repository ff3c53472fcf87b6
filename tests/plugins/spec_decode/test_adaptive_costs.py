"""Prices of drafts: measured from steps of one batch size, guessed before, not led astray by single steps."""

from __future__ import annotations

import pytest

from tokenloom.interfaces.draft_policy import DraftStep, VerifiedDrafts
from tokenloom_spec_decode.adaptive_costs import DraftCosts


def _step(
    num_rows: int,
    duration_s: float,
    num_drafts: int = 0,
    *,
    draft_s: float = 0.0,
    num_proposed: int = 0,
    num_own_tokens: int | None = None,
) -> DraftStep:
    verified = [VerifiedDrafts("r", num_drafts, 0, num_drafts)] if num_drafts else []
    own = num_rows if num_own_tokens is None else num_own_tokens
    return DraftStep(verified, duration_s, num_rows, own, num_proposed, draft_s)


def test_before_anything_is_measured_prices_grow_with_the_batch() -> None:
    costs = DraftCosts()
    prices = [costs.price(num_rows) for num_rows in (1, 8, 64)]
    assert prices == sorted(prices)
    assert 0 < prices[0] < 0.2
    assert 0.8 < prices[2] < 1.0
    assert costs.wants_plain(8)


def test_a_price_is_what_drafts_add_to_a_step() -> None:
    costs = DraftCosts()
    costs.observe(_step(4, 1.0))
    for _ in range(3):
        costs.observe(_step(4, 1.0 + 8 * 0.05 + 8 * 0.01, 8, draft_s=8 * 0.01, num_proposed=8))
    # Four rows, 0.06 s each, for a step of 1 s.
    assert costs.price(4) == pytest.approx(4 * 0.06)
    assert not costs.wants_plain(4)


def test_proposing_counts_even_where_verifying_is_free() -> None:
    costs = DraftCosts()
    costs.observe(_step(1, 1.0))
    for _ in range(3):
        costs.observe(_step(1, 1.1, 2, draft_s=0.2, num_proposed=2))
    assert costs.price(1) == pytest.approx(0.1)


def test_what_a_drafter_costs_without_drafting_is_no_price_of_drafts() -> None:
    """Keeping its own KV in step takes time whether it drafts or not."""
    costs = DraftCosts()
    costs.observe(_step(1, 1.5, draft_s=0.5))
    for _ in range(3):
        costs.observe(_step(1, 1.9, 2, draft_s=0.9, num_proposed=2))
    assert costs.price(1) == pytest.approx(0.4 / 2 / 1.5)


def test_a_step_that_something_delayed_changes_little() -> None:
    costs = DraftCosts()
    for turn in range(6):
        costs.observe(_step(2, 9.0 if turn == 3 else 1.0))
        costs.observe(_step(2, 50.0 if turn == 4 else 1.2, 4))
    assert costs.price(2) == pytest.approx(2 * 0.05)


def test_the_price_follows_when_steps_change() -> None:
    costs = DraftCosts()
    for _ in range(9):
        costs.observe(_step(2, 1.0))
        costs.observe(_step(2, 1.2, 4))
    for _ in range(9):
        costs.observe(_step(2, 1.0))
        costs.observe(_step(2, 2.2, 4))
    assert costs.price(2) == pytest.approx(2 * 0.3)


@pytest.mark.parametrize("pace", [0.5, 1.5])
def test_a_machine_that_changes_its_speed_does_not_change_prices(pace: float) -> None:
    costs = DraftCosts()
    for _ in range(4):
        costs.observe(_step(1, 1.0))
    for _ in range(12):
        costs.observe(_step(1, 1.1, 1))
    assert costs.price(1) == pytest.approx(0.1)
    for _ in range(12):
        costs.observe(_step(1, pace * 1.1, 1))
    for _ in range(3):
        costs.observe(_step(1, pace))
    assert costs.price(1) == pytest.approx(0.1)
    # What was compared with steps of its own time is not compared with those of later times.
    for _ in range(40):
        costs.observe(_step(1, 1.0))
    costs.observe(_step(1, 1.1, 1))
    for _ in range(5):
        costs.observe(_step(1, 1.0))
    assert costs.price(1) == pytest.approx(0.1)


def test_two_probes_correct_a_price_that_a_delay_has_raised() -> None:
    """Nothing is drafted at such a price, so there are few steps to measure it by."""
    costs = DraftCosts()
    costs.observe(_step(1, 1.0))
    for _ in range(9):
        costs.observe(_step(1, 2.0, 1))
    assert costs.price(1) == pytest.approx(1.0)
    for _ in range(2):
        costs.observe(_step(1, 1.0))
        costs.observe(_step(1, 1.1, 1))
    assert costs.price(1) == pytest.approx(0.1)


def test_two_delayed_plain_steps_do_not_make_drafts_free() -> None:
    costs = DraftCosts()
    for _ in range(5):
        costs.observe(_step(1, 1.0))
        for _ in range(5):
            costs.observe(_step(1, 1.3, 1))
    for _ in range(2):
        costs.observe(_step(1, 2.5))
        for _ in range(9):
            costs.observe(_step(1, 1.3, 1))
    assert costs.price(1) == pytest.approx(0.3)


def test_the_latest_steps_are_those_of_the_same_batch_size() -> None:
    costs = DraftCosts()
    for num_rows, duration_s, count in ((16, 1.8, 8), (8, 1.2, 3)):
        costs.observe(_step(num_rows, 1.0))
        for _ in range(count):
            costs.observe(_step(num_rows, duration_s, num_rows))
    assert costs.price(16) == pytest.approx(0.8)


def test_chunks_of_prompts_and_empty_steps_do_not_count() -> None:
    costs = DraftCosts()
    costs.observe(_step(4, 1.0, num_own_tokens=60))
    costs.observe(_step(4, 5.0, 8, num_own_tokens=60))
    costs.observe(_step(0, 3.0))
    assert costs.price(4) == DraftCosts().price(4)
    assert costs.wants_plain(4)


def test_few_drafts_among_many_requests_measure_no_price() -> None:
    costs = DraftCosts()
    costs.observe(_step(64, 1.0))
    costs.observe(_step(64, 1.3, 2))
    assert costs.price(64) == DraftCosts().price(64)
    for _ in range(3):
        costs.observe(_step(64, 1.32, 32))
    assert costs.price(64) == pytest.approx(0.64)


def test_batches_of_about_the_same_size_share_what_is_known() -> None:
    costs = DraftCosts()
    costs.observe(_step(32, 1.0))
    for _ in range(3):
        costs.observe(_step(32, 1.5, 32))
    assert costs.price(32) == pytest.approx(0.5)
    assert costs.price(48) == costs.price(20) == costs.price(32)
    assert not costs.wants_plain(48)
    assert costs.price(4) == DraftCosts().price(4)
    assert costs.wants_plain(4)


def test_a_plain_step_is_wanted_again_when_the_last_one_is_old() -> None:
    costs = DraftCosts()
    costs.observe(_step(4, 1.0))
    for number in range(300):
        assert costs.wants_plain(4) == (number >= 96)
        costs.observe(_step(4, 1.5, 8))
    costs.observe(_step(4, 1.0))
    assert not costs.wants_plain(4)


@pytest.mark.parametrize("duration_s", [0.0, 1e-12, 1e6])
def test_coarse_clocks_do_no_harm(duration_s: float) -> None:
    costs = DraftCosts()
    for _ in range(3):
        costs.observe(_step(4, duration_s))
        costs.observe(_step(4, duration_s, 8, draft_s=0.0, num_proposed=8))
    assert costs.price(4) >= 0.0


def test_a_price_that_few_steps_have_measured_is_not_believed_if_it_is_low() -> None:
    costs = DraftCosts()
    guess = costs.price(64)
    costs.observe(_step(64, 1.0))
    for number in range(3):
        assert costs.would_learn(64, 1.0)
        assert not costs.would_learn(64, 0.1), "lost in the noise"
        assert costs.price(64) == guess
        costs.observe(_step(64, 1.1 + 0.01 * number, 64))
    assert not costs.would_learn(64, 1.0)
    assert costs.price(64) == pytest.approx(0.11)


def test_a_length_grows_from_what_is_known() -> None:
    costs = DraftCosts()
    assert costs.longest_trial(8) == 1
    costs.observe(_step(8, 1.0))
    for longest in (1, 2, 4):
        verified = [VerifiedDrafts(f"r{row}", longest, 0, longest) for row in range(8)]
        costs.observe(DraftStep(verified, 1.2, 8, 8, 0, 0.0))
        assert costs.longest_trial(8) == 2 * longest
    assert costs.longest_trial(12) == 8, "about the same size"
    assert costs.longest_trial(64) == 1


def test_a_machine_that_becomes_slower_does_not_make_drafts_dear() -> None:
    """Plain steps first, then all at half the speed: those with drafts are compared with what is usual now."""
    costs = DraftCosts()
    for _ in range(9):
        costs.observe(_step(8, 1.0))
    for number in range(60):
        costs.observe(_step(8, 1.8))
        if number >= 50:
            costs.observe(_step(8, 1.8 * 1.3, 8))
    assert costs.price(8) == pytest.approx(0.3, rel=0.1)
