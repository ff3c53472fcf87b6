"""`native_cpu` on numbers that are none: what should be NaN must not come out as an ordinary number."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from tests.plugins.attention.native_cpu_pool import LEVELS, at_level, make_pool
from tokenloom.testing.paged_pool import Shape, Work, layer_of

Kept = Literal["auto", "int8"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("soft_cap", [None, 3.0])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_nan_comes_out_as_nan(
    name: str, soft_cap: float | None, kv_dtype: Kept, dtype: torch.dtype, level: str
) -> None:
    """NaN in one element of one token, seen by a decode and by a prompt with rows before and after it."""
    with at_level(level):
        pool = make_pool(Shape(4, 2, head_dim=32, block_size=16, dtype=dtype), 80, kv_dtype)
        decode, prompt, clean = pool.paged(70), pool.paged(21), pool.paged(40, 39)
        for paged, at in ((decode, 69 if name == "query" else 7), (prompt, 12)):
            {"query": paged.query, "key": paged.key, "value": paged.value}[name][at, :, 5] = torch.nan
        pool.write([Work(decode, 69)])
        decode.num_computed = 69
        out = pool.step([Work(decode, 1), Work(prompt, 21), Work(clean, 1)], layer_of(pool.shape, None, soft_cap))
        column = out[..., 5]  # [23, 4]: the element itself, where a value is bad the only one that need be
        assert bool(column[0].isnan().all()), "a decode that sees it"
        assert bool(column[13].isnan().all()), "the prompt's own row"
        assert bool(out[22].isfinite().all()), "another request"
        if name == "query":
            assert bool(out[1:13].isfinite().all() & out[14:22].isfinite().all()), "the prompt's other rows"
        else:
            assert bool(column[14:22].isnan().all()), "the prompt's later rows"


@pytest.mark.parametrize("level", LEVELS)
def test_nan_of_one_part_reaches_the_whole(level: str) -> None:
    """One row on several threads is split over its keys; NaN is in one of the parts."""
    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with at_level(level):
            pool = make_pool(Shape(4, 2, head_dim=32, block_size=16), 80)
            decode = pool.paged(1000)
            decode.key[900, :, 5] = torch.nan
            pool.write([Work(decode, 999)])
            decode.num_computed = 999
            out = pool.step([Work(decode, 1)], layer_of(pool.shape))
            assert bool(out.isnan().all())
    finally:
        torch.set_num_threads(usual)


def test_an_int8_cache_gives_back_nan_for_a_head_with_infinity() -> None:
    """A head of a token that cannot be rounded has no number left; other heads and tokens keep theirs."""
    pool = make_pool(Shape(4, 2, head_dim=32, block_size=16), 8, "int8")
    paged = pool.paged(5)
    paged.value[2, 1, 3] = -torch.inf
    pool.write([Work(paged, 5)])
    scales = pool.backend.export_blocks(pool.kv, pool.index(paged.blocks))[3][0, :5]  # [5, 2]
    assert scales.isnan().tolist() == [[False, index == 2] for index in range(5)]
