"""Steps of `triton_paged` as its operations see them, against the reference, in tiles and splits that the test chooses.

Import it as `from tests.plugins.attention.triton_paged_steps import check_step`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch

from tokenloom.interfaces.attention import AttentionLayer
from tokenloom.testing.numeric_device import TOLERANCES, check_close
from tokenloom.testing.paged_pool import Pool, Shape, Work, new_rows
from tokenloom_attention.triton_paged import TritonPagedConfig, reference
from tokenloom_attention.triton_paged.launches import pack_tree, paged_attention
from tokenloom_attention.triton_paged.plan import StepPlan, query_blocks
from tokenloom_attention.triton_paged.tuning import Tiles

__all__ = ["SMALL", "check_step", "make_pool", "plan_of"]

SMALL = Tiles(16, 16, 4, 1)
"""Many tiles and programs from few tokens."""


def make_pool(shape: Shape, num_blocks: int = 150, kv_dtype: Literal["auto", "int8", "fp8_e4m3"] = "auto") -> Pool:
    """A pool full of NaN."""
    return Pool(TritonPagedConfig(kv_dtype=kv_dtype).build(shape.context()), shape, num_blocks)


def plan_of(works: list[Work], shape: Shape, num_padding: int = 0, tiles: Tiles = SMALL, **changes: Any) -> StepPlan:
    """The plan of a step in given tiles."""
    query_lens = [work.num_new for work in works] + [1] * num_padding
    num_blocks, uniform = query_blocks(query_lens, tiles.rows // (shape.num_heads // shape.num_kv_heads))
    return replace(StepPlan(tiles, num_blocks, uniform), **changes)


def check_step(pool: Pool, works: list[Work], layer: AttentionLayer, plan: StepPlan, num_padding: int = 0) -> None:
    """Stores and attends with the kernels, and compares with the reference on what is stored."""
    batch = pool.batch(works, num_padding, layer.window)
    key, value, query = (_padded(new_rows(works, name), num_padding) for name in ("key", "value", "query"))
    pool.backend.write_kv(pool.kv, key, value, pool.backend.prepare(batch))
    scales = pool.kv[1] if len(pool.kv) == 2 else None
    words = None if batch.tree_mask is None else pack_tree(batch.tree_mask)
    out = paged_attention(query, pool.kv[0], scales, batch, words, layer, plan)
    expected = reference.paged_attention(query, pool.kv[0], scales, batch, words, layer)
    check_close(out, expected, TOLERANCES[pool.shape.dtype], f"{pool.shape}, {layer}, {plan}")


def _padded(rows: torch.Tensor, num_padding: int) -> torch.Tensor:
    return torch.cat([rows, rows.new_full((num_padding, *rows.shape[1:]), torch.nan)])
