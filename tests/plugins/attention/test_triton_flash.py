"""`triton_flash`: its kernel against the reference, and which requests go where."""

from __future__ import annotations

import pytest
import torch

from tokenloom.interfaces.attention import AttentionLayer
from tokenloom.testing.numeric_device import TOLERANCES, check_close
from tokenloom.testing.paged_pool import Pool, Shape, Work, layer_of, random_parents
from tokenloom_attention.triton_flash import TritonFlashBackend, TritonFlashConfig, reference
from tokenloom_attention.triton_flash.backend import TritonFlashMetadata
from tokenloom_attention.triton_flash.launches import flash_attention
from tokenloom_attention.triton_paged.tuning import Tiles

SMALL = Tiles(16, 16, 4, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (7, None), (None, 2.0), (20, 2.0)])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(4, 2, 16), (3, 3, 80), (6, 1, 64)])
def test_flash_attention_and_its_sums_match_the_reference(
    num_heads: int, num_kv_heads: int, head_dim: int, window: int | None, soft_cap: float | None, dtype: torch.dtype
) -> None:
    """Requests with as many keys as queries and with more, from slices of a fused projection."""
    query_lens, key_lens = [17, 1, 30, 1], [17, 40, 49, 1]
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(sum(key_lens), num_heads + 2 * num_kv_heads, head_dim, generator=generator).to(dtype)
    query = fused[-sum(query_lens) :, :num_heads]
    key, value = fused[:, num_heads : num_heads + num_kv_heads], fused[:, num_heads + num_kv_heads :]
    lens = [torch.tensor([0, *counts]).cumsum(0).int() for counts in (query_lens, key_lens)]
    sinks = torch.linspace(-2.0, 4.0, num_heads) if window is not None else None
    layer = AttentionLayer(0, 0, head_dim**-0.5, window, soft_cap, sinks)
    out, lse = flash_attention(query, key, value, *lens, query_lens, layer, SMALL)
    expected, expected_lse = reference.flash_attention(query, key, value, *lens, query_lens, layer)
    check_close(out, expected, TOLERANCES[dtype], "flash_attention")
    check_close(lse, expected_lse, TOLERANCES[dtype], "logarithms of the sums")


def test_equal_lengths_are_found_by_division() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(57, heads, 16, generator=generator) for heads in (4, 2, 2))
    cu_seqlens = torch.arange(0, 58, 19, dtype=torch.int32)
    layer = AttentionLayer(0, 0, 0.25)
    out, _ = flash_attention(query, key, value, cu_seqlens, cu_seqlens, [19] * 3, layer, SMALL)
    expected, _ = reference.flash_attention(query, key, value, cu_seqlens, cu_seqlens, [19] * 3, layer)
    check_close(out, expected, 1e-5, "equal lengths")


def make_pool(**changes: bool) -> Pool:
    shape = Shape(4, 2, head_dim=16, block_size=4, **changes)  # type: ignore[arg-type]
    return Pool(TritonFlashConfig().build(shape.context()), shape, 150)


def test_a_step_mixes_fresh_requests_with_others() -> None:
    """Fresh ones at both ends and between, beside padding: each row comes from the kernel that it belongs to."""
    pool = make_pool()
    works = [
        Work(pool.paged(21), 21),
        Work(pool.paged(30, 29), 1),
        Work(pool.paged(1), 1),
        Work(pool.paged(40, 17), 23),
        Work(pool.paged(9), 9),
    ]
    for window, soft_cap in ((None, None), (6, 2.0)):
        pool.check(works, layer_of(pool.shape, window, soft_cap), num_padding=3)
        pool.check(works[:1], layer_of(pool.shape, window, soft_cap))


def prepared(pool: Pool, works: list[Work], num_padding: int = 0) -> TritonFlashMetadata:
    assert isinstance(pool.backend, TritonFlashBackend)
    return pool.backend.prepare(pool.batch(works, num_padding))


def test_only_requests_without_cached_tokens_are_fresh() -> None:
    pool = make_pool()
    fresh, cached = Work(pool.paged(9), 9), Work(pool.paged(9, 5), 4)
    assert prepared(pool, [fresh]).blocks is not None
    assert not prepared(pool, [fresh]).has_paged
    assert prepared(pool, [fresh, cached]).has_paged
    assert prepared(pool, [fresh], num_padding=1).has_paged  # somebody must write zeros
    assert prepared(pool, [cached]).blocks is None
    assert not prepared(pool, [cached]).paged.plan.skip_fresh


def test_trees_and_deterministic_steps_take_one_path() -> None:
    pool = make_pool()
    tree = Work(pool.paged(9), 9, random_parents(9, 0))
    assert prepared(pool, [tree]).blocks is None
    pool = make_pool(deterministic=True)
    assert prepared(pool, [Work(pool.paged(9), 9)]).blocks is None
