"""The low-bit products at each level of instructions that this machine has, and what layers of them hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tokenloom.interfaces.quant import LinearWeights
from tokenloom.ops.native import why_not_buildable
from tokenloom.testing import QuantSuite
from tokenloom.testing.held_memory import held_tensor_bytes
from tokenloom_quant.gguf.layers import GGUFEmbedding, GGUFLinear
from tokenloom_quant.low_bit.kernels import load_kernels
from tokenloom_quant.low_bit.layers import LowBitEmbedding, LowBitLinear

LEVELS = ("portable", "avx2", "avx512", "amx")
NEEDS_COMPILER = pytest.mark.skipif(why_not_buildable() is not None, reason=str(why_not_buildable()))


@contextmanager
def at_level(level: str) -> Iterator[None]:
    """Limits the products to a level, and lifts the limit afterwards; skips what the processor lacks."""
    module = load_kernels()
    usual = module.isa()
    if not module.set_isa(level):
        pytest.skip(f"this processor has no {level}")
    try:
        yield
    finally:
        module.set_isa(usual)


class LowBitSuite(QuantSuite):
    """Layers of one quantizer lie side by side in one piece of memory, of which each holds a part."""

    def held_bytes(self, weights: LinearWeights) -> int:
        if isinstance(weights, GGUFLinear | GGUFEmbedding):
            products: tuple[object, ...] = weights.products
        else:
            assert isinstance(weights, LowBitLinear | LowBitEmbedding)
            products = (weights.product,)
        parts = [part for product in products for part in vars(product).values() if isinstance(part, torch.Tensor)]
        shared = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}
        return held_tensor_bytes(weights) - sum(shared.values()) + sum(part.nbytes for part in parts)
