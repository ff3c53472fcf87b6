"""Trees of drafts in `torch_sdpa`: siblings share a position, and the window is measured by position."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.attention.torch_sdpa_pool import make_pool
from tokenloom.testing.paged_pool import Shape, Work, layer_of, random_parents


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 4, 17])
@pytest.mark.parametrize("num_nodes", [2, 7, 16, 45])
def test_forward_of_random_trees_in_half_precision_matches_reference(
    num_nodes: int, window: int | None, soft_cap: float | None, dtype: torch.dtype
) -> None:
    pool = make_pool(Shape(block_size=4, dtype=dtype))
    works = [
        Work(pool.paged(cached + num_nodes, cached), num_nodes, random_parents(num_nodes, seed))
        for seed, cached in enumerate((0, 1, 3, 4, 5, 16, 60))
    ]
    if window is not None:
        for work in works:
            pool.free_left_of_window(work.paged, window)
    pool.check(works, layer_of(pool.shape, window, soft_cap))


@pytest.mark.parametrize("window", [None, 3])
def test_forward_of_each_tree_path_equals_the_chain(window: int | None) -> None:
    pool = make_pool(Shape(block_size=4))
    layer = layer_of(pool.shape, window)
    parents = (-1, 0, 0, 1, 1, 2, 3)
    tree = pool.paged(21, num_computed=14)
    out = pool.step([Work(tree, 7, parents)], layer)
    for leaf in (4, 5, 6):
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        slots = [*range(14), *(14 + node for node in path)]
        chain = pool.paged(len(slots))
        chain.query, chain.key, chain.value = tree.query[slots], tree.key[slots], tree.value[slots]
        pool.write([Work(chain, 14)])
        chain.num_computed = 14
        in_chain = pool.step([Work(chain, len(path))], layer)
        torch.testing.assert_close(out[path], in_chain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("num_rows", [3, 40])
def test_rows_that_see_nothing_are_zero(num_rows: int, deterministic: bool) -> None:
    pool = make_pool(Shape(block_size=4, deterministic=deterministic))
    work = Work(pool.paged(num_rows), num_rows, random_parents(num_rows, 0))
    out = pool.step([work], layer_of(pool.shape))
    batch = pool.batch([work])
    assert batch.tree_mask is not None
    batch.tree_mask[1] = False
    blind = pool.backend.forward(work.paged.query, pool.kv, layer_of(pool.shape), pool.backend.prepare(batch))
    assert bool((blind[1] == 0).all())
    seeing = [row for row in range(num_rows) if row != 1]
    torch.testing.assert_close(blind[seeing], out[seeing], rtol=1e-5, atol=1e-5)
