"""The eviction suite passes a right policy and fails each planted bug."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.testing.planted_eviction import Bug, eviction_info
from tests.testing.suite_runner import FAILED, PASSED, SKIPPED, make_suite, run_test, test_names
from tokenloom.testing import EvictionSuite

FLAGS = {
    "tail_first": "test_the_tail_of_a_sequence_goes_first",
    "recency": "test_a_block_that_is_used_again_goes_later",
    "retention": "test_retention_holds_until_it_expires",
}
YIELDS = "test_a_touch_yields_the_key_of_its_block"
COMPARED = "test_keys_can_be_compared"
EQUAL = "test_equal_touches_give_equal_keys"
LARGER = "test_larger_retention_is_kept_longer"
KNOWN = "test_time_alone_changes_known_blocks_only"

CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "ignores_touches": (YIELDS, "test_every_block_can_be_evicted_from_a_pool"),
    "ignores_releases": (YIELDS,),
    "returns_a_stranger": (YIELDS,),
    "keys_of_two_lengths": (COMPARED,),
    "key_is_a_number": (COMPARED,),
    "nan_for_the_first": (COMPARED,),
    "reads_the_clock": (EQUAL,),
    "draws_at_random": (EQUAL,),
    "refreshes_the_removed": (KNOWN,),
    "remembers_the_removed": ("test_a_block_that_was_removed_comes_back_as_new",),
    "keeps_a_history": ("test_it_never_outgrows_the_blocks",),
    "head_first": (FLAGS["tail_first"],),
    "hits_do_not_count": (FLAGS["recency"],),
    "never_expires": (FLAGS["retention"],),
    "expires_unasked": (FLAGS["retention"],),
    "depth_in_three_bits": (FLAGS["tail_first"],),
    "ticks_wrap": (FLAGS["recency"],),
    "whole_seconds": (FLAGS["recency"],),
    "retention_yes_or_no": (LARGER,),
    "negative_retention_lost": (LARGER,),
}


def planted(bug: str, *flags: str) -> type[EvictionSuite]:
    return make_suite(EvictionSuite, eviction_info(*flags), settings={"bug": bug})


def test_right_policy_passes_every_test() -> None:
    outcomes = {name: run_test(planted("none", *FLAGS), name) for name in test_names(EvictionSuite)}
    assert {name: outcome for name, outcome in outcomes.items() if outcome[0] != PASSED} == {}


@pytest.mark.parametrize("flag", FLAGS)
def test_what_is_not_claimed_is_skipped(flag: str) -> None:
    outcome, message = run_test(planted("none"), FLAGS[flag])
    assert (outcome, message) == (SKIPPED, f"{flag} is not declared")


@pytest.mark.parametrize(("bug", "name"), [(bug, name) for bug, names in CAUGHT_BY.items() for name in names])
def test_planted_bug_is_caught(bug: str, name: str) -> None:
    outcome, message = run_test(planted(bug, *FLAGS), name)
    assert outcome == FAILED
    assert message.split(": ", 2)[2], "a failure without a message"


def test_every_bug_is_caught_and_every_test_catches_one() -> None:
    assert set(CAUGHT_BY) == set(get_args(Bug)) - {"none"}
    assert {name for names in CAUGHT_BY.values() for name in names} == set(test_names(EvictionSuite))
