"""`quant=int4` through the conformance suite of its contract: both kinds of rounding, and rounded activations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.plugins.quant.low_bit_levels import NEEDS_COMPILER, LowBitSuite, at_level

pytestmark = NEEDS_COMPILER

HALF_A_STEP = 0.5 / 127 * 1.001
HALF_OF_15 = 0.5 * 2 / 15 * 1.02
"""A group reaches at most from minus to plus its row's largest weight, in 15 steps."""
HALF_OF_7 = 0.5 / 7 * 1.02


class TestInt4(LowBitSuite):
    plugin = "int4"
    max_relative_error = HALF_OF_15
    other_settings = ({"symmetric": True, "activations": "int8"}, {"group_size": 32, "include_embedding": True})


class TestInt4Symmetric(LowBitSuite):
    plugin = "int4"
    settings = {"symmetric": True, "group_size": 32, "include_embedding": True}
    max_relative_error = HALF_OF_7


class TestInt4Int8Activations(LowBitSuite):
    plugin = "int4"
    settings = {"activations": "int8", "group_size": 32, "include_embedding": True}
    max_relative_error = HALF_OF_15
    max_activation_error = HALF_A_STEP


class TestInt4Avx2(LowBitSuite):
    plugin = "int4"
    max_relative_error = HALF_OF_15

    @pytest.fixture(autouse=True)
    def level(self) -> Iterator[None]:
        with at_level("avx2"):
            yield


class TestInt4Portable(LowBitSuite):
    plugin = "int4"
    settings = {"symmetric": True, "activations": "int8"}
    max_relative_error = HALF_OF_7
    max_activation_error = HALF_A_STEP

    @pytest.fixture(autouse=True)
    def level(self) -> Iterator[None]:
        with at_level("portable"):
            yield
