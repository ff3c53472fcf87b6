"""`torch_sdpa` at the edges that its contract does not ask about: steps without new tokens, and long narrow ones."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.attention.torch_sdpa_pool import make_pool
from tokenloom.testing.attention_cases import mixed_works
from tokenloom.testing.paged_pool import Shape, Work, layer_of


@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_forward_in_blocks_of_an_odd_size_matches_reference(
    dtype: torch.dtype, window: int | None, soft_cap: float | None
) -> None:
    pool = make_pool(Shape(9, 3, head_dim=80, block_size=17, dtype=dtype))
    pool.check(mixed_works(pool), layer_of(pool.shape, window, soft_cap))


def test_forward_skips_requests_without_new_tokens() -> None:
    pool = make_pool(Shape(block_size=4))
    pool.check([Work(pool.paged(9, 9), 0), Work(pool.paged(9, 8), 1), Work(pool.paged(3), 0)], layer_of(pool.shape))


def test_forward_of_an_empty_batch_is_empty() -> None:
    pool = make_pool(Shape())
    metadata = pool.backend.prepare(pool.batch([]))
    empty = torch.empty(0, pool.shape.num_kv_heads, pool.shape.head_dim)
    pool.backend.write_kv(pool.kv, empty, empty, metadata)
    query = torch.empty(0, pool.shape.num_heads, pool.shape.head_dim)
    assert pool.backend.forward(query, pool.kv, layer_of(pool.shape), metadata).shape == query.shape
    assert all(bool(cache.isnan().all()) for cache in pool.kv)
