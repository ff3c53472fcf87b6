"""`quant=int8_dynamic` through the conformance suite of its contract, at each level of instructions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.plugins.quant.low_bit_levels import NEEDS_COMPILER, LowBitSuite, at_level

pytestmark = NEEDS_COMPILER

HALF_A_STEP = 0.5 / 127 * 1.001


class TestInt8Dynamic(LowBitSuite):
    plugin = "int8_dynamic"
    max_activation_error = HALF_A_STEP


class TestInt8DynamicWithEmbedding(LowBitSuite):
    plugin = "int8_dynamic"
    settings = {"include_embedding": True, "group_size": 0}
    max_activation_error = HALF_A_STEP


class TestInt8DynamicAvx2(LowBitSuite):
    plugin = "int8_dynamic"
    max_activation_error = HALF_A_STEP

    @pytest.fixture(autouse=True)
    def level(self) -> Iterator[None]:
        with at_level("avx2"):
            yield


class TestInt8DynamicPortable(LowBitSuite):
    plugin = "int8_dynamic"
    settings = {"group_size": 32}
    max_activation_error = HALF_A_STEP

    @pytest.fixture(autouse=True)
    def level(self) -> Iterator[None]:
        with at_level("portable"):
            yield
