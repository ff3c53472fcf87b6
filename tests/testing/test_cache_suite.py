"""The cache suite passes right caches, be they flat or trees, and fails each planted bug."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.testing.planted_cache import FlatBug, TreeBug, cache_info
from tests.testing.suite_runner import FAILED, PASSED, make_suite, run_test, test_names
from tokenloom.testing import CacheSuite

HISTORIES = "test_random_histories_agree_with_a_dictionary"
LONG = "test_long_histories_agree_with_a_dictionary"
EVERYTHING = "test_everything_but_what_is_held_can_be_evicted"
GAP = "test_a_hit_stops_at_the_first_gap"
WINDOW = "test_a_window_needs_only_its_last_blocks"
ONCE = "test_a_key_is_indexed_once"
DEEP = "test_a_long_sequence_is_found_to_its_end"
TRAFFIC = "test_random_traffic_yields_what_each_request_yields_alone"

FLAT_CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "past_a_gap": (GAP, LONG),
    "window_one_short": (WINDOW, TRAFFIC),
    "window_ids_beyond": (WINDOW,),
    "forgets_no_key": (GAP, LONG),
    "leaks_a_block": (LONG,),
    "indexes_twice": (ONCE, LONG),
    "key_stays_taken": (ONCE,),
    "match_records": ("test_match_changes_nothing",),
    "match_pins": ("test_match_changes_nothing",),
    "counts_offers": (ONCE, LONG),
    "short_keys": ("test_any_key_is_told_from_any_other",),
    "depth_for_a_key": ("test_equal_tokens_of_another_salt_are_not_found",),
    "takes_nothing": ("test_a_computed_prefix_is_found_again",),
    "pins_the_deep": (EVERYTHING, LONG),
    "stores_in_spite": ("test_it_stores_prefixes_exactly_if_it_says_so",),
    "keeps_every_key": ("test_it_never_outgrows_the_memory_that_it_indexes",),
    "evicts_by_key": ("test_equal_histories_evict_the_same_blocks",),
    "asks_for_a_run": ("test_reservations_can_be_granted",),
    "matches_twenty": (DEEP,),
    "refuses_the_deep": (DEEP,),
    "compares_eight_bytes": ("test_each_byte_of_a_key_counts",),
}

TREE_CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "hides_the_parent": (GAP, LONG),
    "drops_the_subtree": (GAP, LONG),
    "knows_no_holders": (LONG, HISTORIES),
}


def planted(name: str, bug: str) -> type[CacheSuite]:
    info = cache_info("tree" if name == "tree" else "flat", *(() if bug == "stores_in_spite" else ("prefix_cache",)))
    return make_suite(CacheSuite, info, settings={"bug": bug})


@pytest.mark.parametrize("name", ["flat", "tree"])
def test_right_cache_passes_every_test(name: str) -> None:
    outcomes = {test: run_test(planted(name, "none"), test) for test in test_names(CacheSuite)}
    assert {test: outcome for test, outcome in outcomes.items() if outcome[0] != PASSED} == {}


@pytest.mark.parametrize(
    ("name", "bug", "test"),
    [("flat", bug, test) for bug, tests in FLAT_CAUGHT_BY.items() for test in tests]
    + [("tree", bug, test) for bug, tests in TREE_CAUGHT_BY.items() for test in tests],
)
def test_planted_bug_is_caught(name: str, bug: str, test: str) -> None:
    outcome, message = run_test(planted(name, bug), test)
    assert outcome == FAILED
    assert message.split(": ", 2)[2], "a failure without a message"


def test_every_bug_is_caught_and_every_test_catches_one() -> None:
    assert set(FLAT_CAUGHT_BY) == set(get_args(FlatBug)) - {"none"}
    assert set(TREE_CAUGHT_BY) == set(get_args(TreeBug)) - {"none"}
    used = {test for table in (FLAT_CAUGHT_BY, TREE_CAUGHT_BY) for tests in table.values() for test in tests}
    assert used == set(test_names(CacheSuite))


def test_a_selective_cache_may_refuse_blocks() -> None:
    suite = make_suite(
        CacheSuite, cache_info("flat", "prefix_cache", "selective"), settings={"bug": "refuses_the_deep"}
    )
    assert run_test(suite, DEEP)[0] == PASSED
