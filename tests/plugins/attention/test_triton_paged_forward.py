"""The kernels of `triton_paged` against their reference at odd sizes, in small tiles and in splits."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
import triton
import triton.language as tl

from tests.plugins.attention.triton_paged_steps import check_step, make_pool, plan_of
from tokenloom.testing.numeric_device import TOLERANCES, check_close
from tokenloom.testing.paged_pool import Pool, Shape, Work, layer_of, new_rows, random_parents
from tokenloom_attention.triton_capabilities import HEAD_DIMS
from tokenloom_attention.triton_paged import reference
from tokenloom_attention.triton_paged.kernels import lines_of
from tokenloom_attention.triton_paged.launches import attention_launches
from tokenloom_attention.triton_paged.tuning import Tiles

LAYERS = ((None, None), (7, None), (None, 2.0), (20, 2.0))


def mixed(pool: Pool) -> list[Work]:
    """A decode, a verification, a chunk and a prompt, whose lengths are no multiples of anything."""
    return [
        Work(pool.paged(50, 49), 1),
        Work(pool.paged(38, 33), 5),
        Work(pool.paged(41, 20), 21),
        Work(pool.paged(17), 17),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_size_matches_the_reference(head_dim: int, dtype: torch.dtype) -> None:
    """Sizes between powers of two are padded: what lies behind a head's last element must not be used."""
    pool = make_pool(Shape(4, 2, head_dim=head_dim, block_size=16, dtype=dtype))
    works = [Work(pool.paged(20, 19), 1), Work(pool.paged(18), 18)]
    check_step(pool, works, layer_of(pool.shape), plan_of(works, pool.shape))


@pytest.mark.parametrize(("window", "soft_cap"), LAYERS)
@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
def test_mixed_steps_at_every_block_size_match_the_reference(
    block_size: int, window: int | None, soft_cap: float | None
) -> None:
    """Blocks smaller and larger than a tile, and sizes that divide none. Blocks that left the window hold NaN."""
    pool = make_pool(Shape(4, 2, head_dim=16, block_size=block_size), 300)
    works = mixed(pool)
    if window is not None:
        for work in works:
            pool.free_left_of_window(work.paged, window)
    check_step(pool, works, layer_of(pool.shape, window, soft_cap), plan_of(works, pool.shape, 2), 2)


@pytest.mark.parametrize("heads", [(4, 4), (3, 1), (6, 3), (21, 1), (7, 1)])
def test_groups_of_every_size_match_the_reference(heads: tuple[int, int]) -> None:
    """Groups that fill no tile leave rows idle; those larger than a tile of 16 get a larger one."""
    pool = make_pool(Shape(*heads, head_dim=16, block_size=16))
    works = mixed(pool)
    tiles = Tiles(32 if heads[0] // heads[1] > 16 else 16, 32, 4, 1)
    check_step(pool, works, layer_of(pool.shape), plan_of(works, pool.shape, tiles=tiles))


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_quantized_caches_match_the_reference(kv_dtype: Literal["int8", "fp8_e4m3"], dtype: torch.dtype) -> None:
    pool = make_pool(Shape(4, 2, head_dim=80, block_size=16, dtype=dtype), kv_dtype=kv_dtype)
    works = mixed(pool)
    check_step(pool, works, layer_of(pool.shape, 20), plan_of(works, pool.shape))


@pytest.mark.parametrize(("window", "soft_cap"), LAYERS)
@pytest.mark.parametrize("split_span", [32, 64])
def test_split_sequences_match_the_reference(split_span: int, window: int | None, soft_cap: float | None) -> None:
    """Requests of up to five tokens are split, the others not; some have fewer spans than the grid, padding none. A
    sink counts once, however many programs a row has."""
    pool = make_pool(Shape(4, 2, head_dim=16, block_size=16))
    works = [*mixed(pool), Work(pool.paged(3, 2), 1), Work(pool.paged(101, 100), 1)]
    splits = {"num_splits": 112 // split_span + 1, "split_query_len": 5, "split_span": split_span}
    plan = plan_of(works, pool.shape, 1, **splits)
    sinks = torch.tensor([3.0, -1.0, 0.5, 60.0]) if split_span == 32 else None
    check_step(pool, works, replace(layer_of(pool.shape, window, soft_cap), sinks=sinks), plan, 1)


def test_split_uniform_steps_match_the_reference() -> None:
    """Decodes only: requests are found by division, not by search."""
    pool = make_pool(Shape(4, 2, head_dim=16, block_size=16))
    works = [Work(pool.paged(length, length - 1), 1) for length in (1, 16, 17, 40, 65)]
    plan = plan_of(works, pool.shape, num_splits=3, split_query_len=1, split_span=32)
    assert plan.uniform_query_len == 1
    check_step(pool, works, layer_of(pool.shape), plan)


@pytest.mark.parametrize("window", [None, 7, 30])
@pytest.mark.parametrize("num_splits", [1, 3])
def test_trees_match_the_reference(num_splits: int, window: int | None) -> None:
    """Trees beside plain requests, split and whole, in tiles that begin before the tree and end behind it."""
    pool = make_pool(Shape(4, 2, head_dim=16, block_size=4))
    works = [
        Work(pool.paged(cached + nodes, cached), nodes, random_parents(nodes, nodes))
        for cached, nodes in ((0, 7), (13, 20), (33, 4))
    ]
    works += [Work(pool.paged(30, 29), 1), Work(pool.paged(19), 19)]
    split = {"num_splits": num_splits, "split_query_len": 20, "split_span": 32} if num_splits > 1 else {}
    check_step(pool, works, layer_of(pool.shape, window), plan_of(works, pool.shape, **split))


def test_deterministic_steps_match_the_reference() -> None:
    pool = make_pool(Shape(4, 2, head_dim=16, block_size=16))
    works = mixed(pool)
    check_step(pool, works, layer_of(pool.shape, 20), plan_of(works, pool.shape, mask_all=True))


@pytest.mark.parametrize("splits", [{}, {"num_splits": 4, "split_query_len": 5, "split_span": 32}])
def test_skipped_requests_keep_their_rows(splits: dict[str, int]) -> None:
    """`skip_fresh` is how `triton_flash` takes requests that have nothing cached: their rows are not touched, nor are
    they where other requests are split that have no fewer new tokens."""
    pool = make_pool(Shape(4, 2, head_dim=16, block_size=16))
    works = mixed(pool)
    check_step(pool, works[:3], layer_of(pool.shape), plan_of(works[:3], pool.shape, skip_fresh=True))
    works.append(Work(pool.paged(2), 2))
    plan, query = plan_of(works, pool.shape, skip_fresh=True, **splits), new_rows(works, "query")
    out = torch.full_like(query, torch.nan)
    batch, layer = pool.batch(works), layer_of(pool.shape)
    for launch in attention_launches(out, query, pool.kv[0], None, batch, None, layer, plan):
        launch.run()
    is_kept = out.isnan().flatten(1).all(dim=1)
    assert is_kept.tolist() == [False] * 27 + [True] * 19


def test_layers_of_a_step_share_launches_and_nothing_else() -> None:
    """Other scales, sinks, caches and strides on one `prepare`: only what is equal may be kept."""
    pool = make_pool(Shape(4, 2, head_dim=16, block_size=16))
    works = [*mixed(pool), Work(pool.paged(600, 599), 1)]
    batch = pool.batch(works)
    metadata = pool.backend.prepare(batch)
    caches = [torch.randn(pool.kv[0].shape, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    query = new_rows(works, "query")
    strided = torch.cat([query, query.flip(0)], dim=1)[:, 4:]
    for scale, sinks in ((0.5, torch.tensor([1.0, 2.0, 3.0, 4.0])), (0.5, torch.zeros(4)), (0.25, None)):
        layer = replace(layer_of(pool.shape), softmax_scale=scale, sinks=sinks)
        for cache, rows in zip(caches, (query, strided)):
            out = pool.backend.forward(rows, [cache], layer, metadata)
            expected = reference.paged_attention(rows, cache, None, batch, None, layer)
            check_close(out, expected, TOLERANCES[torch.float32], f"{layer}")


@triton.jit
def _lines_kernel(out: tl.tensor, table: tl.tensor, stride: tl.tensor) -> None:
    slots = tl.arange(0, 4)
    paged = lines_of((None, None, None, table, 0), slots, slots >= 0, True, 2)
    contiguous = lines_of((None, None, None, None, stride), slots, slots >= 0, True, 2)
    tl.store(out + tl.program_id(1) * 8 + slots, paged)
    tl.store(out + tl.program_id(1) * 8 + 4 + slots, contiguous)


def test_lines_are_counted_in_64_bits() -> None:
    """Where a tile's keys lie, for block ids and strides whose products exceed 32 bits; no such memory is touched."""
    out, table = torch.zeros(3, 8, dtype=torch.int64), torch.tensor([2**30, 2**31 - 1], dtype=torch.int32)
    _lines_kernel[(1, 3)](out, table, 2**30 + 1)
    for head in range(3):
        begins = [(2 * block * 3 + head) * 2 for block in (2**30, 2**31 - 1)]
        paged = [begin + offset for begin in begins for offset in (0, 1)]
        assert out[head].tolist() == [*paged, *(slot * (2**30 + 1) for slot in range(4))]
