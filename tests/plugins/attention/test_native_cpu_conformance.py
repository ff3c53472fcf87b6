"""`native_cpu` through the conformance suite of its contract, at each level of instructions, with an int8 cache too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.plugins.attention.native_cpu_pool import as_int8, at_level
from tokenloom.testing import AttentionSuite
from tokenloom.testing.paged_pool import Shape


class TestNativeCpu(AttentionSuite):
    plugin = "native_cpu"


class TestNativeCpuInTiles(AttentionSuite):
    """In bfloat16, with head sizes that AMX tiles divide, many rows go through them."""

    plugin = "native_cpu"

    def shape(self, **changes: Any) -> Shape:
        return super().shape(**{"dtype": torch.bfloat16, **changes})

    def head_dims(self) -> tuple[int, ...]:
        return (32, 64, 96, 288)


class TestNativeCpuAvx512(AttentionSuite):
    plugin = "native_cpu"

    @pytest.fixture(autouse=True)
    def level(self) -> Iterator[None]:
        with at_level("avx512"):
            yield


class TestNativeCpuAvx2(AttentionSuite):
    plugin = "native_cpu"

    @pytest.fixture(autouse=True)
    def level(self) -> Iterator[None]:
        with at_level("avx2"):
            yield


class TestNativeCpuPortable(AttentionSuite):
    plugin = "native_cpu"

    @pytest.fixture(autouse=True)
    def level(self) -> Iterator[None]:
        with at_level("portable"):
            yield


class TestNativeCpuInt8(AttentionSuite):
    plugin = "native_cpu"
    settings = {"kv_dtype": "int8"}

    def as_stored(self, tokens: torch.Tensor) -> torch.Tensor:
        return as_int8(tokens)


class TestNativeCpuInt8InTiles(TestNativeCpuInTiles):
    settings = {"kv_dtype": "int8"}

    def as_stored(self, tokens: torch.Tensor) -> torch.Tensor:
        return as_int8(tokens)


class TestNativeCpuInt8Avx2(TestNativeCpuInt8):
    @pytest.fixture(autouse=True)
    def level(self) -> Iterator[None]:
        with at_level("avx2"):
            yield
