"""The quant suite passes right quantizers and fails each planted bug, in the tests that are made for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tests.testing.planted_quant import ZERO_POINT, pack_nibbles, quant_info
from tests.testing.suite_runner import FAILED, SKIPPED, failed_tests, make_suite, run_test, test_names
from tokenloom.interfaces.quant import LayerSpec
from tokenloom.testing.held_memory import held_tensor_bytes
from tokenloom.testing.quant_suite import QuantSuite

CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "activation scale over the batch": ("apply_treats_each_row_by_itself",),
    "bfloat16 read as float16": ("load_takes_the_dtype_of_the_checkpoint",),
    "bias added twice": ("apply_adds_the_bias_once",),
    "bias dropped": ("apply_adds_the_bias_once",),
    "bias dropped by many rows": ("apply_adds_the_bias_once",),
    "bytes counted as elements": ("num_bytes_is_what_a_layer_holds",),
    "bytes without scales": ("num_bytes_is_what_a_layer_holds",),
    "caller's memory kept": ("load_keeps_nothing_of_the_caller",),
    "covers by turns": ("covers_depends_on_the_layer_alone",),
    "covers experts": ("covers_depends_on_the_layer_alone",),
    "covers nothing": ("covers_a_linear_layer",),
    "fails without rows": ("apply_multiplies_by_the_stored_weights",),
    "fingerprint is constant": ("fingerprint_tells_settings_apart_that_round_differently",),
    "fingerprint is empty": ("fingerprint_is_stable",),
    "fingerprint leaves out the activations": ("fingerprint_tells_settings_apart_that_round_differently",),
    "fingerprint of the object": ("fingerprint_is_stable",),
    "halves the caller's tensor": ("load_keeps_nothing_of_the_caller",),
    "input scaled in place": ("apply_takes_strided_rows_and_leaves_them_as_they_are",),
    "keeps what was loaded": ("num_bytes_is_what_a_layer_holds",),
    "last columns ignored": ("weights_stay_within_the_stated_error",),
    "lookup in float32": ("embedding_looks_up_what_its_head_multiplies_by",),
    "lookup of the true weights": (
        "embedding_looks_up_what_its_head_multiplies_by",
        "model_multiplies_by_the_weights_of_its_layers",
    ),
    "lookup without scale": ("embedding_looks_up_what_its_head_multiplies_by",),
    "one buffer for all layers of a size": ("layers_of_one_quantizer_are_independent",),
    "one scale for two rows": ("weights_stay_within_the_stated_error",),
    "one scale per layer": ("weights_stay_within_the_stated_error",),
    "result in float32": ("apply_multiplies_by_the_stored_weights",),
    "rounds down": ("weights_stay_within_the_stated_error",),
    "rows read as if contiguous": ("apply_takes_strided_rows_and_leaves_them_as_they_are",),
    "scale of zeros is NaN": ("rows_of_zeros_stay_zeros",),
    "scale forgotten by few rows": ("apply_multiplies_by_the_stored_weights",),
    "shards by name": ("weights_stay_within_the_stated_error",),
    "shards in the order of loading": ("load_takes_shards_in_any_order",),
    "skip list by substring": ("covers_leaves_the_skip_list_to_the_core", "model_leaves_skipped_layers_dense"),
    "sums depend on the batch": ("deterministic_rows_do_not_depend_on_the_batch",),
    "wrong for many rows": ("apply_multiplies_by_the_stored_weights",),
    "wrong for very many rows": ("apply_multiplies_by_the_stored_weights",),
    "zero point one too high": ("weights_stay_within_the_stated_error",),
}
"""Bug -> tests that must fail, without "test_"."""

SEEN_NOWHERE_ELSE = frozenset(
    {
        "bfloat16 read as float16",
        "bias dropped by many rows",
        "bytes without scales",
        "caller's memory kept",
        "covers experts",
        "covers nothing",
        "fingerprint is constant",
        "fingerprint leaves out the activations",
        "lookup in float32",
        "rows read as if contiguous",
        "scale of zeros is NaN",
        "shards in the order of loading",
        "skip list by substring",
    }
)
"""Bugs that nothing but the named tests can see."""

ROUNDS_ACTIVATIONS: Mapping[str, Any] = {
    "settings": {"rounds_activations": True},
    "max_activation_error": 0.5 / 127,
}


class TestPlantedWithoutBug(QuantSuite):
    plugin = quant_info()


class TestPlantedInBfloat16(QuantSuite):
    plugin = quant_info(dtypes=("bfloat16",))


class TestPlantedInFloat16(QuantSuite):
    plugin = quant_info(dtypes=("float16",))


class TestPlantedThatRoundsActivations(QuantSuite):
    plugin = quant_info()
    settings = {"rounds_activations": True}
    max_activation_error = 0.5 / 127


class TestPlantedPacked(QuantSuite):
    """A format of its own: two nibbles a byte, zero point 8."""

    plugin = quant_info()
    settings = {"include_embedding": False}
    max_relative_error = 0.5 / 7 * 1.02
    in_multiple = 2
    checkpoint = {"quant_method": "planted"}

    def make_tensors(self, spec: LayerSpec, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        scales = (weight.abs().amax(dim=1, keepdim=True) / 7).clamp_min(1e-6)
        nibbles = ((weight / scales).round().clamp(-7, 7) + ZERO_POINT).to(torch.uint8)
        return {"qweight": pack_nibbles(nibbles), "scales": scales}


def planted(bug: str) -> type[QuantSuite]:
    if bug == "activation scale over the batch":
        settings = {**ROUNDS_ACTIVATIONS["settings"], "bug": bug}
        return make_suite(QuantSuite, quant_info(), **{**ROUNDS_ACTIVATIONS, "settings": settings})
    return make_suite(QuantSuite, quant_info(), settings={"bug": bug})


@pytest.mark.parametrize("bug", CAUGHT_BY)
def test_quant_suite_catches(bug: str) -> None:
    outcomes = {name: run_test(planted(bug), f"test_{name}") for name in CAUGHT_BY[bug]}
    assert {name: outcome for name, (outcome, _) in outcomes.items()} == dict.fromkeys(CAUGHT_BY[bug], FAILED)
    assert all(message for _, message in outcomes.values())


@pytest.mark.parametrize("bug", sorted(SEEN_NOWHERE_ELSE))
def test_quant_suite_blames_nothing_else_for(bug: str) -> None:
    assert sorted(failed_tests(planted(bug))) == [f"test_{name}" for name in CAUGHT_BY[bug]]


def test_every_quant_test_is_failed_by_a_planted_bug() -> None:
    assert {f"test_{name}" for names in CAUGHT_BY.values() for name in names} == set(test_names(QuantSuite))


def test_quant_suite_catches_a_zero_point_of_a_packed_format() -> None:
    packed = type("Broken", (TestPlantedPacked,), {"settings": {"bug": "packed zero point one too low"}})
    assert run_test(packed, "test_weights_stay_within_the_stated_error")[0] == FAILED


def test_quant_suite_catches_activations_that_round_without_saying_so() -> None:
    silent = make_suite(QuantSuite, quant_info(), settings=ROUNDS_ACTIVATIONS["settings"])
    assert run_test(silent, "test_apply_multiplies_by_the_stored_weights")[0] == FAILED


def test_quant_suite_catches_more_rounding_than_is_stated() -> None:
    proud = make_suite(QuantSuite, quant_info(), max_relative_error=0.1 / 127)
    assert set(failed_tests(proud)) >= {"test_weights_stay_within_the_stated_error"}


def test_quant_suite_asks_for_no_determinism_that_is_not_claimed() -> None:
    honest = make_suite(QuantSuite, quant_info(frozenset()), settings={"bug": "sums depend on the batch"})
    outcome, reason = run_test(honest, "test_deterministic_rows_do_not_depend_on_the_batch")
    assert outcome == SKIPPED
    assert "deterministic" in reason


def test_held_tensor_bytes_counts_each_storage_once_and_all_of_it() -> None:
    class Holder:
        __slots__ = ("parts",)

    base = torch.zeros(100)
    holder = Holder()
    holder.parts = {"a": base[:10], "b": (base[50:], [torch.zeros(3, dtype=torch.int8)])}
    assert held_tensor_bytes(holder) == 400 + 3
    assert held_tensor_bytes(object()) == 0
