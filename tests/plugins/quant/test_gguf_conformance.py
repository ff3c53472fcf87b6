"""`quant=gguf` through the conformance suite of its contract, with blocks of each type and with plain weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize

from tests.plugins.quant.low_bit_levels import NEEDS_COMPILER, LowBitSuite, at_level
from tokenloom.interfaces.quant import LayerSpec

pytestmark = NEEDS_COMPILER

HALF_A_STEP = 0.5 / 127 * 1.001
HALF_AN_INT8_STEP = (0.5 + 127 * 2**-11) / 127
"""The format chooses codes before it rounds the scale to float16."""


class GGUFSuite(LowBitSuite):
    """Weights of linear layers come in blocks of `block_type`; folders, which the suite writes, have a plain table."""

    in_multiple = 32
    stored_types = frozenset({"Q4_0", "Q4_1", "Q8_0"})
    block_type: ClassVar[str]

    def make_tensors(self, spec: LayerSpec, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        if spec.kind == "embedding":
            return {"weight": weight}
        blocks = quantize(weight.numpy(), gguf.GGMLQuantizationType[self.block_type])
        return {self.block_type: torch.from_numpy(np.ascontiguousarray(blocks))}


class TestQ40(GGUFSuite):
    plugin = "gguf"
    block_type = "Q4_0"
    max_relative_error = 1 / 8 * 1.02  # 8 steps below zero and 7 above


class TestQ41(GGUFSuite):
    plugin = "gguf"
    block_type = "Q4_1"
    max_relative_error = 0.5 * 2 / 15 * 1.02


class TestQ41Int8Activations(GGUFSuite):
    plugin = "gguf"
    settings = {"activations": "int8"}
    block_type = "Q4_1"
    max_relative_error = 0.5 * 2 / 15 * 1.02
    max_activation_error = HALF_A_STEP


class TestQ80(GGUFSuite):
    plugin = "gguf"
    block_type = "Q8_0"
    max_relative_error = HALF_AN_INT8_STEP


class TestQ80Avx2(GGUFSuite):
    plugin = "gguf"
    block_type = "Q8_0"
    max_relative_error = HALF_AN_INT8_STEP

    @pytest.fixture(autouse=True)
    def level(self) -> Iterator[None]:
        with at_level("avx2"):
            yield


class TestPlainWeights(LowBitSuite):
    """What a file does not hold in these blocks stays in the model's dtype."""

    plugin = "gguf"
    stored_types = frozenset({"Q4_1"})
    max_relative_error = 0.0
