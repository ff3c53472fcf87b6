"""The attention suite passes right backends and fails each planted bug, in the tests that are made for it."""

from __future__ import annotations

from typing import final

import pytest
import torch

from tests.testing.planted_attention import ALL_FLAGS, attention_info
from tests.testing.suite_runner import FAILED, PASSED, SKIPPED, failed_tests, make_suite, run_test, test_names
from tokenloom.interfaces.attention import AttentionConfig, AttentionContext
from tokenloom.interfaces.contract import Capabilities, PluginInfo
from tokenloom.testing.attention_suite import AttentionSuite
from tokenloom.testing.reference_backend import ReferenceBackend

CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "16-bit slots": ("the_last_blocks_of_a_big_pool_are_reached",),
    "cache rounded by reading": ("forward_leaves_query_and_cache_as_they_are",),
    "cap after the mask": ("forward_caps_scores_before_the_mask",),
    "cap ignored": ("forward_caps_scores_before_the_mask", "groups_share_one_backend"),
    "causal leak by one": ("forward_of_a_verification_equals_single_steps", "forward_of_a_prompt_equals_its_chunks"),
    "chunks ignore what is cached": ("forward_of_a_prompt_equals_its_chunks",),
    "clears the rest of the block": ("write_kv_stores_each_token_at_its_slot_and_nothing_else",),
    "copies one after the other": ("copy_slots_reads_all_before_it_writes",),
    "export drops the last slot": ("export_blocks_gives_the_canonical_layout",),
    "export heads first": ("export_blocks_gives_the_canonical_layout",),
    "export is a view": ("export_blocks_gives_the_canonical_layout",),
    "export sorts the blocks": (
        "import_restores_exported_blocks_bit_for_bit",
        "a_sequence_moved_to_other_blocks_attends_the_same",
    ),
    "first 512 tokens only": ("forward_of_long_sequences_matches_the_reference",),
    "heads tiled": ("forward_of_a_mixed_batch_matches_the_reference",),
    "import cleans NaN": ("import_restores_exported_blocks_bit_for_bit",),
    "import drops values": ("a_sequence_moved_to_other_blocks_attends_the_same",),
    "keys read as if contiguous": ("write_kv_takes_strided_keys_and_values",),
    "large windows too wide": ("forward_around_the_window_matches_the_reference",),
    "negative slots stored": ("write_kv_does_not_store_negative_slots",),
    "newest batch for every group": ("groups_share_one_backend",),
    "only -1 is not stored": ("write_kv_does_not_store_negative_slots",),
    "only keys copied": ("copy_slots_reads_all_before_it_writes", "an_accepted_path_is_compacted_by_copy_slots"),
    "padding rows left as they are": ("forward_ignores_padding_rows",),
    "page bytes grow with the pool": ("kv_cache_spec_states_its_bytes_exactly",),
    "page bytes of one tensor": ("kv_cache_spec_states_its_bytes_exactly",),
    "plan kept by address": ("prepare_reads_the_batch_anew",),
    "positions instead of slots": ("forward_of_trees_matches_the_reference",),
    "query read as if contiguous": ("forward_takes_strided_queries",),
    "query scaled in place": ("forward_leaves_query_and_cache_as_they_are",),
    "reads the whole last block": ("forward_of_a_mixed_batch_matches_the_reference",),
    "scale missing where deterministic": ("deterministic_results_match_the_reference",),
    "scale of its own": ("forward_uses_the_scale_of_the_layer",),
    "scale of the padded head": ("forward_in_every_dtype_and_head_dim_matches_the_reference",),
    "scores clamped at 80": ("forward_tells_scores_beyond_80_apart",),
    "scores rounded": ("forward_keeps_large_scores_exact",),
    "sees what looks plausible": (
        "an_accepted_path_is_compacted_by_copy_slots",
        "forward_ignores_slots_beyond_the_sequence",
    ),
    "sinks ignored": ("forward_weighs_sinks_and_gives_them_no_value",),
    "sinks of KV heads": ("forward_weighs_sinks_and_gives_them_no_value",),
    "sinks scaled": ("forward_weighs_sinks_and_gives_them_no_value",),
    "sinks stand for the last key": ("forward_weighs_sinks_and_gives_them_no_value",),
    "sums depend on the batch": ("deterministic_results_do_not_depend_on_the_batch_or_the_chunks",),
    "sums depend on the chunk": ("deterministic_results_do_not_depend_on_the_batch_or_the_chunks",),
    "table read in blocks of 16": ("forward_of_a_mixed_batch_matches_the_reference",),
    "tree mask ignored": ("forward_of_trees_matches_the_reference", "forward_mixes_trees_with_plain_requests"),
    "tree mask transposed": ("forward_of_trees_matches_the_reference",),
    "unwritten slots times zero": ("forward_of_a_mixed_batch_matches_the_reference",),
    "window by slot": ("forward_of_trees_matches_the_reference",),
    "window ignored": ("forward_around_the_window_matches_the_reference", "forward_sees_exactly_the_window"),
    "window too narrow": ("forward_around_the_window_matches_the_reference", "forward_sees_exactly_the_window"),
    "window too wide": ("forward_around_the_window_matches_the_reference", "forward_sees_exactly_the_window"),
    "window too wide in decode": ("forward_of_a_verification_equals_single_steps",),
    "writes one slot too many": ("write_kv_stores_each_token_at_its_slot_and_nothing_else",),
    "wrong result dtype": ("forward_of_a_mixed_batch_matches_the_reference",),
}
"""Bug -> tests that must fail, without "test_"."""

SEEN_NOWHERE_ELSE = frozenset(
    {
        "16-bit slots",
        "copies one after the other",
        "first 512 tokens only",
        "large windows too wide",
        "newest batch for every group",
        "page bytes of one tensor",
        "plan kept by address",
        "query read as if contiguous",
        "scores clamped at 80",
        "sinks scaled",
        "sees what looks plausible",
    }
)
"""Bugs that nothing but the named tests can see."""


@final
class ReferenceConfig(AttentionConfig):
    """The kit's own backend as a plugin."""

    def build(self, context: AttentionContext) -> ReferenceBackend:
        return ReferenceBackend(context)


REFERENCE = PluginInfo(
    kind="attention",
    name="reference",
    config="tests.testing.test_attention_suite:ReferenceConfig",
    contract=(1, 1),
    summary="Dense fp32 attention.",
    capabilities=Capabilities(flags=frozenset({"sliding_window", "soft_cap", "sinks", "tree_mask"})),
)


class TestReferenceBackend(AttentionSuite):
    plugin = REFERENCE


class TestPlantedWithoutBug(AttentionSuite):
    plugin = attention_info()


class TestPlantedWithNarrowCapabilities(AttentionSuite):
    plugin = attention_info(dtypes=("bfloat16",), head_dims=(24, 40), block_size_multiple=48)


@pytest.mark.parametrize("bug", CAUGHT_BY)
def test_attention_suite_catches(bug: str) -> None:
    suite = make_suite(AttentionSuite, attention_info(), settings={"bug": bug})
    outcomes = {name: run_test(suite, f"test_{name}") for name in CAUGHT_BY[bug]}
    assert {name: outcome for name, (outcome, _) in outcomes.items()} == dict.fromkeys(CAUGHT_BY[bug], FAILED)
    assert all(message for _, message in outcomes.values())


@pytest.mark.parametrize("bug", sorted(SEEN_NOWHERE_ELSE))
def test_attention_suite_blames_nothing_else_for(bug: str) -> None:
    info = attention_info(ALL_FLAGS - {"deterministic"})  # whose test fails for any wrong result, and takes longest
    found = failed_tests(make_suite(AttentionSuite, info, settings={"bug": bug}))
    assert sorted(found) == [f"test_{name}" for name in CAUGHT_BY[bug]]


def test_every_attention_test_is_failed_by_a_planted_bug() -> None:
    assert {f"test_{name}" for names in CAUGHT_BY.values() for name in names} == set(test_names(AttentionSuite))


@pytest.mark.parametrize(
    ("flag", "bug"),
    [
        ("sliding_window", "window ignored"),
        ("soft_cap", "cap ignored"),
        ("sinks", "sinks ignored"),
        ("tree_mask", "tree mask ignored"),
        ("deterministic", "sums depend on the batch"),
    ],
)
def test_attention_suite_asks_for_no_more_than_is_claimed(flag: str, bug: str) -> None:
    honest = make_suite(AttentionSuite, attention_info(ALL_FLAGS - {flag, "deterministic"}), settings={"bug": bug})
    assert failed_tests(honest) == {}
    outcome, reason = run_test(honest, f"test_{CAUGHT_BY[bug][0]}")
    assert outcome == SKIPPED
    assert flag in reason


def test_attention_suite_keeps_to_declared_sizes_and_dtypes() -> None:
    info = attention_info(dtypes=("bfloat16",), head_dims=(24,), block_size_multiple=64)
    suite = make_suite(AttentionSuite, info)()
    assert suite.block_sizes() == (64, 128)
    shape = suite.shape()
    assert (shape.dtype, shape.head_dim, shape.block_size) == (torch.bfloat16, 24, 64)
    name = "test_forward_in_every_dtype_and_head_dim_matches_the_reference"
    assert run_test(type(suite), name)[0] == PASSED


@pytest.mark.parametrize(
    ("capabilities", "reason"),
    [({"devices": ("npu",)}, "runs on npu only"), ({"requires": ("no_such_module",)}, "needs no_such_module")],
)
def test_attention_suite_skips_what_this_machine_cannot_run(capabilities: dict[str, object], reason: str) -> None:
    suite = make_suite(AttentionSuite, attention_info(**capabilities))
    outcome, message = run_test(suite, "test_forward_uses_the_scale_of_the_layer")
    assert outcome == SKIPPED
    assert reason in message


class RoundedCacheSuite(AttentionSuite):
    plugin = attention_info(ALL_FLAGS - {"deterministic"})
    settings = {"bug": "cache of bfloat16"}

    def as_stored(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.to(torch.bfloat16).to(tokens.dtype)


def test_as_stored_lets_a_cache_round() -> None:
    assert failed_tests(RoundedCacheSuite) == {}
    silent = make_suite(AttentionSuite, RoundedCacheSuite.plugin, settings=RoundedCacheSuite.settings)
    assert run_test(silent, "test_forward_of_a_mixed_batch_matches_the_reference")[0] == FAILED
