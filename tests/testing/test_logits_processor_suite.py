"""The suite of logits processors passes right ones and fails each planted bug, in the tests made for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.testing.planted_logits_processor import PLANTED, PLANTED_WITH_REQUIRED_SETTINGS, PlantedConfig
from tests.testing.suite_runner import FAILED, PASSED, SKIPPED, make_suite, run_test, test_names
from tokenloom.errors import PluginError
from tokenloom.interfaces.contract import Capabilities, PluginInfo
from tokenloom.testing import LogitsProcessorSuite
from tokenloom.testing.varied_settings import varied_settings

CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "acts behind token 50 only": ("process_changes_logits_in_place",),
    "by place": ("a_row_does_not_depend_on_its_company", "a_row_does_not_depend_on_its_place"),
    "clamps": ("what_is_forbidden_stays_forbidden",),
    "clears what it was given before": ("logits_of_earlier_calls_are_left_alone",),
    "counts calls": ("earlier_calls_leave_no_trace", "equal_calls_give_equal_results"),
    "counts on where it stopped": (
        "calls_take_no_memory",
        "preempted_requests_get_the_same_tokens",
        "tokens_are_not_kept_after_the_call",
    ),
    "divides by the spread": ("process_writes_neither_nan_nor_inf",),
    "draws numbers": ("equal_calls_give_equal_results",),
    "expects a pair of tokens": ("the_shortest_sequences_are_served",),
    "fails behind 64 tokens": ("process_writes_neither_nan_nor_inf",),
    "keeps every call's logits": ("calls_take_no_memory",),
    "looks at the last output token": (
        "preempted_requests_get_the_same_tokens",
        "the_shortest_sequences_are_served",
    ),
    "memo by length and last token": ("drafts_count_as_output", "earlier_calls_leave_no_trace"),
    "one answer for each request": ("drafts_change_no_token", "drafts_count_as_output"),
    "pads with token 0": ("a_row_does_not_depend_on_its_company",),
    "prompt of the first row": ("a_row_does_not_depend_on_its_company", "a_row_does_not_depend_on_its_place"),
    "raises a token to inf": ("process_writes_neither_nan_nor_inf",),
    "reads behind the view": ("drafts_change_no_token", "only_the_tokens_of_the_row_are_read"),
    "rounds in large batches": ("a_row_does_not_depend_on_its_company",),
    "seeds the generator of all": ("process_leaves_generators_alone",),
    "settings of the first request": (
        "requests_get_the_same_tokens_in_company",
        "settings_of_the_first_request_do_not_enter",
    ),
    "settings of the first row": ("a_row_does_not_depend_on_its_company", "requests_get_the_same_tokens_in_company"),
    "sorts the rows": ("process_leaves_tokens_and_rows_as_they_are",),
    "sorts the tokens": ("process_leaves_tokens_and_rows_as_they_are",),
    "subtracts the mean": ("process_writes_neither_nan_nor_inf",),
    "works on a copy": ("process_changes_logits_in_place",),
    "writes the next row": ("a_row_does_not_depend_on_its_company", "a_row_does_not_depend_on_its_place"),
    "writes to the settings": ("process_leaves_tokens_and_rows_as_they_are",),
    "writes what lies around": ("process_writes_no_other_memory",),
}
"""Bug -> tests that must fail, without "test_"."""

THROUGH_THE_ENGINE = frozenset(
    {
        "drafts_change_no_token",
        "preempted_requests_get_the_same_tokens",
        "requests_get_the_same_tokens_in_company",
    }
)

SEEN_NOWHERE_ELSE = frozenset(
    {
        "clamps",
        "clears what it was given before",
        "counts on where it stopped",
        "divides by the spread",
        "expects a pair of tokens",
        "keeps every call's logits",
        "looks at the last output token",
        "memo by length and last token",
        "one answer for each request",
        "rounds in large batches",
        "seeds the generator of all",
        "settings of the first request",
        "sorts the rows",
        "sorts the tokens",
        "subtracts the mean",
        "works on a copy",
        "writes what lies around",
    }
)
"""Bugs that nothing but the named tests can see, short of running the engine."""


class TestPlantedWithoutBug(LogitsProcessorSuite):
    plugin = PLANTED


class TestPlantedWithMadeUpSettings(LogitsProcessorSuite):
    plugin = PLANTED_WITH_REQUIRED_SETTINGS
    settings = {"word": "given"}


class TestPlantedBehindAToken(LogitsProcessorSuite):
    plugin = PLANTED
    settings = {"bug": "acts behind token 50 only"}
    sequences = (((1, 50, 2, 1), 2),)


def planted(bug: str) -> type[LogitsProcessorSuite]:
    return make_suite(LogitsProcessorSuite, PLANTED, settings={"bug": bug})


@pytest.mark.parametrize("bug", CAUGHT_BY)
def test_logits_processor_suite_catches(bug: str) -> None:
    suite = planted(bug)
    outcomes = {name: run_test(suite, f"test_{name}") for name in CAUGHT_BY[bug]}
    assert {name: outcome for name, (outcome, _) in outcomes.items()} == dict.fromkeys(CAUGHT_BY[bug], FAILED)
    assert all(message for _, message in outcomes.values())


@pytest.mark.parametrize("bug", sorted(SEEN_NOWHERE_ELSE))
def test_logits_processor_suite_blames_nothing_else_for(bug: str) -> None:
    names = [name for name in test_names(LogitsProcessorSuite) if name.removeprefix("test_") not in THROUGH_THE_ENGINE]
    found = {name for name in names if run_test(planted(bug), name)[0] == FAILED}
    assert found == {f"test_{name}" for name in CAUGHT_BY[bug] if name not in THROUGH_THE_ENGINE}


def test_every_logits_processor_test_is_failed_by_a_planted_bug() -> None:
    assert {f"test_{name}" for names in CAUGHT_BY.values() for name in names} == set(test_names(LogitsProcessorSuite))


def test_a_failure_in_the_engine_shows_what_the_plugin_raised() -> None:
    suite = planted("looks at the last output token")
    _, message = run_test(suite, "test_requests_get_the_same_tokens_in_company")
    assert "plugin logits_processor=planted failed at output position 0: IndexError" in message


def test_a_processor_for_another_device_runs_no_engine() -> None:
    info = PluginInfo(PLANTED.kind, PLANTED.name, PLANTED.config, (1, 0), "", Capabilities(devices=("mps",)))
    suite = make_suite(LogitsProcessorSuite, info)
    outcomes = {run_test(suite, name)[0] for name in test_names(suite)}
    assert outcomes == {SKIPPED}


# ---- settings to try ----


def test_settings_vary_one_field_at_a_time() -> None:
    found = [config.model_dump() for config in varied_settings(PLANTED, {"amount": 2.0})]
    default = PlantedConfig(amount=2.0).model_dump()
    assert found[0] == default
    differences = [[(key, value) for key, value in each.items() if value != default[key]] for each in found[1:]]
    assert differences == [
        [("amount", 1.0)],
        [("amount", 0.5)],
        [("amount", 0.0)],  # -1 is refused
        [("output_only", True)],
        [("curve", "square")],
    ]


def test_other_settings_are_tried_and_must_be_right() -> None:
    first, other, *_ = varied_settings(PLANTED, {}, [{"amount": 9.0}])
    assert (first, other) == (PlantedConfig(), PlantedConfig(amount=9.0))
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        varied_settings(PLANTED, {}, [{"amount": -9.0}])


@pytest.mark.parametrize(("given", "amounts"), [({"word": "a"}, [3, None]), ({"word": "a", "amount": 5}, [5, 3, None])])
def test_required_settings_are_made_up(given: Mapping[str, Any], amounts: list[int | None]) -> None:
    assert [
        config.model_dump()["amount"] for config in varied_settings(PLANTED_WITH_REQUIRED_SETTINGS, given)
    ] == amounts


def test_settings_that_cannot_be_made_up_are_asked_for() -> None:
    with pytest.raises(
        PluginError, match=r"required needs the settings amount, word, .* the class attribute `settings`"
    ):
        varied_settings(PLANTED_WITH_REQUIRED_SETTINGS, {})
    with pytest.raises(ValueError, match="amount"):
        varied_settings(PLANTED_WITH_REQUIRED_SETTINGS, {"amount": 1, "word": "a"})
    assert (
        run_test(make_suite(LogitsProcessorSuite, PLANTED_WITH_REQUIRED_SETTINGS), "test_drafts_count_as_output")[0]
        == FAILED
    )
    assert run_test(TestPlantedWithMadeUpSettings, "test_drafts_count_as_output")[0] == PASSED
