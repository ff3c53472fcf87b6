"""The cache of `torch_sdpa` where it is larger than 32-bit offsets reach; the conformance suite has the rest."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.attention.torch_sdpa_pool import make_pool
from tokenloom.testing.paged_pool import Shape, Work, layer_of


@pytest.mark.slow
def test_slots_beyond_two_to_the_31_elements_are_reached() -> None:
    shape = Shape(8, 8, head_dim=256, block_size=32, dtype=torch.bfloat16)
    num_blocks = 2**31 // (8 * 256 * 32) + 8
    pool = make_pool(shape, num_blocks=2)
    # Untouched pages of `empty` take no memory.
    pool.kv = [torch.empty(size, dtype=torch.bfloat16) for size in pool.backend.kv_cache_spec(num_blocks).shapes]
    paged = pool.paged(40)
    paged.blocks = [num_blocks - 1, num_blocks - 2]
    pool.check([Work(paged, 40)], layer_of(shape))
    paged.num_computed = 39
    pool.check([Work(paged, 1)], layer_of(shape))
