"""The suites of drafters and draft policies pass right ones and fail each planted bug, in the tests made for it."""

from __future__ import annotations

import pytest

from tests.testing.planted_draft_memory import MEMORY_BUGS, PLANTED_MEMORY
from tests.testing.planted_spec_decode import PLANTED_DRAFTER, PLANTED_POLICY, drafter_info, policy_info
from tests.testing.suite_runner import FAILED, PASSED, SKIPPED, failed_tests, make_suite, run_test, test_names
from tokenloom.testing import DraftPolicySuite, SpecDecodeSuite

DRAFTER_BUGS: dict[str, tuple[str, ...]] = {
    "answers sorted by id": ("proposals_do_not_depend_on_the_order_of_the_batch",),
    "drafts for the longest only": ("proposals_do_not_depend_on_the_batch",),
    "equal siblings": ("proposals_are_legal", "greedy_output_is_the_targets_own"),
    "expects two pairs": ("the_shortest_sequences_are_served",),
    "fewer in company": ("proposals_do_not_depend_on_the_batch",),
    "forget of unknown ids fails": ("forget_leaves_the_other_requests_alone",),
    "forgets all": ("forget_leaves_the_other_requests_alone",),
    "frontier of its own": ("preempted_requests_get_the_same_tokens",),
    "keeps the view": ("tokens_are_not_kept_after_the_call",),
    "keeps a buffer of each request": ("requests_that_ended_take_no_memory",),
    "layer beyond the last": ("needs_are_legal_and_fixed",),
    "needs change": ("needs_are_legal_and_fixed",),
    "negative token": ("proposals_are_legal", "seeded_output_is_the_targets_own"),
    "never forgets": ("a_forgotten_id_is_a_new_request", "requests_that_ended_take_no_memory"),
    "noise of the seed alone": ("draws_are_independent",),
    "noise without the choice": ("draws_are_independent",),
    "numpy integers": ("proposals_are_legal",),
    "one at least": ("no_drafts_where_none_are_asked_for", "proposals_are_legal"),
    "one noise for every depth": ("drafts_are_drawn_from_their_probs",),
    "one request goes without answer": ("proposals_are_legal",),
    "one table for all": ("proposals_do_not_depend_on_the_batch",),
    "one table row and one noise": ("draws_are_independent",),
    "parents behind their children": ("proposals_are_legal",),
    "parents for some nodes": ("proposals_are_legal",),
    "probs are logits": ("probs_are_distributions",),
    "probs before the filters": ("drafts_are_drawn_from_their_probs",),
    "probs do not sum to 1": ("probs_are_distributions",),
    "probs in bf16": ("proposals_are_legal", "seeded_output_is_the_targets_own"),
    "probs in one buffer": ("probs_are_the_cores_to_keep",),
    "probs of the row before": ("drafts_are_drawn_from_their_probs", "probs_are_distributions"),
    "random lengths": ("equal_calls_give_equal_proposals",),
    "reads behind the view": ("only_verified_tokens_are_read",),
    "same draw for every seed": ("drafts_are_drawn_from_their_probs",),
    "seeds the generator of all": ("propose_leaves_generators_alone",),
    "state by place": ("proposals_do_not_depend_on_the_batch",),
    "token beyond the vocabulary": ("proposals_are_legal",),
    "too many": ("proposals_are_legal", "the_shortest_sequences_are_served"),
    "tree though chain_only": ("chains_where_trees_are_illegal", "proposals_are_legal"),
    "writes to the tokens": ("proposals_are_legal",),
}
"""Bug -> tests that must fail, without "test_"."""

POLICY_BUGS: dict[str, tuple[str, ...]] = {
    "a fraction": ("num_drafts_is_a_count",),
    "below zero": ("num_drafts_is_a_count",),
    "counts questions": ("num_drafts_changes_nothing",),
    "divides by the duration": ("observe_takes_every_outcome",),
    "divides by the output": ("num_drafts_is_a_count",),
    "forget of unknown ids fails": ("a_forgotten_id_is_a_new_request",),
    "knows the asked only": ("observe_takes_every_outcome",),
    "keeps every outcome": ("requests_that_ended_take_no_memory",),
    "never forgets": ("a_forgotten_id_is_a_new_request", "requests_that_ended_take_no_memory"),
    "random": ("equal_histories_give_equal_answers",),
    "reads the clock": ("equal_histories_give_equal_answers",),
    "true": ("num_drafts_is_a_count",),
    "writes to the request": ("num_drafts_is_a_count",),
}

SEEN_NOWHERE_ELSE = frozenset(
    {
        "fewer in company",
        "forget of unknown ids fails",
        "forgets all",
        "keeps a buffer of each request",
        "keeps the view",
        "noise without the choice",
        "numpy integers",
        "seeds the generator of all",
    }
)
"""Bugs of drafters that nothing but the named tests can see."""


class TestPlantedWithoutBug(SpecDecodeSuite):
    plugin = PLANTED_DRAFTER


class TestPlantedPolicyWithoutBug(DraftPolicySuite):
    plugin = PLANTED_POLICY


@pytest.mark.parametrize("bug", DRAFTER_BUGS)
def test_spec_decode_suite_catches(bug: str) -> None:
    suite = make_suite(SpecDecodeSuite, PLANTED_DRAFTER, settings={"bug": bug})
    outcomes = {name: run_test(suite, f"test_{name}") for name in DRAFTER_BUGS[bug]}
    assert {name: outcome for name, (outcome, _) in outcomes.items()} == dict.fromkeys(DRAFTER_BUGS[bug], FAILED)
    assert all(message for _, message in outcomes.values())


@pytest.mark.parametrize("bug", sorted(SEEN_NOWHERE_ELSE))
def test_spec_decode_suite_blames_nothing_else_for(bug: str) -> None:
    found = failed_tests(make_suite(SpecDecodeSuite, PLANTED_DRAFTER, settings={"bug": bug}))
    assert sorted(found) == [f"test_{name}" for name in DRAFTER_BUGS[bug]]


@pytest.mark.parametrize("bug", POLICY_BUGS)
def test_draft_policy_suite_catches(bug: str) -> None:
    found = failed_tests(make_suite(DraftPolicySuite, PLANTED_POLICY, settings={"bug": bug}))
    assert {f"test_{name}" for name in POLICY_BUGS[bug]} <= set(found)


def test_spec_decode_suite_passes_a_drafter_with_memory() -> None:
    assert failed_tests(make_suite(SpecDecodeSuite, PLANTED_MEMORY)) == {}


@pytest.mark.parametrize("bug", MEMORY_BUGS)
def test_spec_decode_suite_catches_a_wrong_memory(bug: str) -> None:
    suite = make_suite(SpecDecodeSuite, PLANTED_MEMORY, settings={"bug": bug})
    outcome, message = run_test(suite, f"test_{MEMORY_BUGS[bug]}")
    assert outcome == FAILED
    assert "proposals differ" in message or "head" in message


@pytest.mark.parametrize(
    ("suite", "bugs"),
    [
        (SpecDecodeSuite, {**DRAFTER_BUGS, **{bug: (name,) for bug, name in MEMORY_BUGS.items()}}),
        (DraftPolicySuite, POLICY_BUGS),
    ],
)
def test_every_test_is_failed_by_a_planted_bug(
    suite: type[SpecDecodeSuite | DraftPolicySuite], bugs: dict[str, tuple[str, ...]]
) -> None:
    assert {f"test_{name}" for names in bugs.values() for name in names} == set(test_names(suite))


def test_shared_statistics_may_outlive_a_request() -> None:
    flags = frozenset({"shared_statistics"})
    name = "test_a_forgotten_id_is_a_new_request"
    for suite in (
        make_suite(SpecDecodeSuite, drafter_info(flags), settings={"bug": "never forgets"}),
        make_suite(DraftPolicySuite, policy_info(flags), settings={"bug": "never forgets"}),
    ):
        outcome, reason = run_test(suite, name)
        assert outcome == SKIPPED
        assert "shared_statistics" in reason


def test_drafters_that_return_no_probs_are_not_asked_for_any() -> None:
    suite = make_suite(SpecDecodeSuite, "ngram")
    for name in ("probs_are_distributions", "drafts_are_drawn_from_their_probs", "probs_are_the_cores_to_keep"):
        outcome, reason = run_test(suite, f"test_{name}")
        assert outcome == SKIPPED
        assert "no probs" in reason
    assert run_test(suite, "test_proposals_are_legal")[0] == PASSED
