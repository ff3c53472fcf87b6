"""`torch_sdpa` against the dense reference: every kind of request in one batch, over shapes, windows and soft caps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from tests.plugins.attention.paged_pool import TOLERANCES, Pool, Shape, Work, layer_of

HEADS = [(8, 8), (8, 2), (8, 1), (6, 3), (9, 3)]
BLOCK_SIZES = [1, 4, 16, 17]
WINDOWS = [None, 1, 4, 17]


def mixed_works(pool: Pool, seed: int = 0) -> list[Work]:
    """Prompts, chunks, decodes and verifications of ragged lengths, in any order."""
    size = pool.shape.block_size
    works: list[Work] = []
    for length in sorted({1, size - 1, size, size + 1, 2 * size, 129} - {0}):
        works += [
            Work(pool.paged(length), length),
            Work(pool.paged(length, length - 1), 1),
            Work(pool.paged(length, length // 2), length - length // 2),
            Work(pool.paged(length + 4, length), 4),
        ]
    random.Random(seed).shuffle(works)
    return works


@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("heads", HEADS)
def test_forward_of_a_mixed_batch_matches_reference(
    heads: tuple[int, int], block_size: int, window: int | None, soft_cap: float | None
) -> None:
    pool = Pool(Shape(*heads, head_dim=16, block_size=block_size))
    pool.check(mixed_works(pool), layer_of(pool.shape, window, soft_cap))


@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [16, 64, 80])
@pytest.mark.parametrize("heads", HEADS)
def test_forward_in_every_dtype_and_head_dim_matches_reference(
    heads: tuple[int, int], head_dim: int, dtype: torch.dtype, soft_cap: float | None
) -> None:
    pool = Pool(Shape(*heads, head_dim=head_dim, block_size=16, dtype=dtype))
    pool.check(mixed_works(pool), layer_of(pool.shape, None, soft_cap))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_forward_keeps_large_scores_in_fp32(dtype: torch.dtype) -> None:
    pool = Pool(Shape(9, 3, head_dim=64, block_size=16, dtype=dtype))
    works = mixed_works(pool)
    for work in works:
        work.paged.query *= 16  # scores of some +-50, where bf16 has steps of 0.25
    pool.check(works, layer_of(pool.shape))


@pytest.mark.parametrize("num_new", [1, 3, 40])
@pytest.mark.parametrize("window", [4, 17])
def test_forward_around_the_window_matches_reference(window: int, num_new: int) -> None:
    pool = Pool(Shape(block_size=4))
    works = [Work(pool.paged(length + num_new, length), num_new) for length in range(window - 1, 2 * window + 2)]
    for work in works:
        pool.free_left_of_window(work.paged, window)
    assert any(0 in work.paged.blocks for work in works)
    pool.check(works, layer_of(pool.shape, window))


def test_forward_sees_exactly_the_window() -> None:
    pool = Pool(Shape(1, 1, head_dim=2, block_size=4))
    paged = pool.paged(9)
    paged.query.zero_()  # equal weights: the result is the mean of the visible values
    paged.value.copy_(2.0 ** torch.arange(9)[:, None, None])
    out = pool.step([Work(paged, 9)], layer_of(pool.shape, window=4))
    means = [sum(2.0**slot for slot in range(max(0, i - 3), i + 1)) / min(i + 1, 4) for i in range(9)]
    torch.testing.assert_close(out[:, 0, 0], torch.tensor(means))


@pytest.mark.parametrize("soft_cap", [None, 3.0])
@pytest.mark.parametrize("window", [None, 17])
@pytest.mark.parametrize("first", [1, 31, 32, 33, 64, 99])
def test_forward_of_a_prompt_equals_its_two_chunks(first: int, window: int | None, soft_cap: float | None) -> None:
    pool = Pool(Shape(block_size=16))
    layer = layer_of(pool.shape, window, soft_cap)
    paged = pool.paged(100)
    whole = pool.step([Work(pool.twin(paged), 100)], layer)
    chunks = [pool.step([Work(paged, first)], layer)]
    paged.num_computed = first
    chunks.append(pool.step([Work(paged, 100 - first)], layer))
    torch.testing.assert_close(torch.cat(chunks), whole, **TOLERANCES[torch.float32])


@pytest.mark.parametrize("num_drafts", [1, 2, 5])
def test_forward_of_a_verification_equals_single_steps(num_drafts: int) -> None:
    pool = Pool(Shape(block_size=4))
    layer = layer_of(pool.shape)
    paged = pool.paged(30, num_computed=14)
    verified = pool.step([Work(pool.twin(paged, 14), 1 + num_drafts)], layer)
    for row in range(1 + num_drafts):
        single = pool.step([Work(paged, 1)], layer)
        torch.testing.assert_close(single[0], verified[row], **TOLERANCES[torch.float32])
        paged.num_computed += 1


@pytest.mark.parametrize("padding_len", [0, 1])
@pytest.mark.parametrize("batch_size", range(1, 10))
def test_forward_of_any_batch_size_ignores_padding_rows(batch_size: int, padding_len: int) -> None:
    pool = Pool(Shape(block_size=4), seed=batch_size)
    works = [Work(pool.paged(50, 5 * i + 1), 1) for i in range(batch_size)]
    pool.check(works, layer_of(pool.shape), 9 - batch_size, padding_len)


def test_forward_does_not_depend_on_the_order_of_requests() -> None:
    pool = Pool(Shape(block_size=4))
    works = mixed_works(pool)
    outs = dict(zip(map(id, works), pool.step(works, layer_of(pool.shape)).split([w.num_new for w in works])))
    random.Random(1).shuffle(works)
    for work, out in zip(works, pool.step(works, layer_of(pool.shape)).split([w.num_new for w in works])):
        torch.testing.assert_close(out, outs[id(work)], **TOLERANCES[torch.float32])


def test_forward_skips_requests_without_new_tokens() -> None:
    pool = Pool(Shape(block_size=4))
    pool.check([Work(pool.paged(9, 9), 0), Work(pool.paged(9, 8), 1), Work(pool.paged(3), 0)], layer_of(pool.shape))


def test_forward_of_an_empty_batch_is_empty() -> None:
    pool = Pool(Shape())
    metadata = pool.backend.prepare(pool.batch([]))
    empty = torch.empty(0, pool.shape.num_kv_heads, pool.shape.head_dim)
    pool.backend.write_kv(pool.kv, empty, empty, metadata)
    query = torch.empty(0, pool.shape.num_heads, pool.shape.head_dim)
    assert pool.backend.forward(query, pool.kv, layer_of(pool.shape), metadata).shape == query.shape
    assert all(bool(cache.isnan().all()) for cache in pool.kv)


def test_prepare_of_another_group_leaves_the_first_one_alone() -> None:
    pool = Pool(Shape(block_size=4))
    works = mixed_works(pool)
    layer = layer_of(pool.shape)
    out = pool.step(works, layer)
    metadata = pool.backend.prepare(pool.batch(works))
    pool.backend.prepare(pool.batch(works[:2]))
    query = torch.cat([w.paged.query[w.paged.num_computed : w.paged.num_computed + w.num_new] for w in works])
    assert torch.equal(pool.backend.forward(query, pool.kv, layer, metadata), out)


def test_one_metadata_serves_layers_with_different_windows() -> None:
    pool = Pool(Shape(block_size=4))
    works = mixed_works(pool)
    pool.write(works)
    metadata = pool.backend.prepare(pool.batch(works))
    query = torch.cat([w.paged.query[w.paged.num_computed : w.paged.num_computed + w.num_new] for w in works])
    for layer in (layer_of(pool.shape), layer_of(pool.shape, 4), layer_of(pool.shape, None, 2.0), layer_of(pool.shape)):
        out = pool.backend.forward(query, pool.kv, layer, metadata)
        assert torch.equal(out, pool.step(works, layer))


def test_forward_uses_the_scale_of_the_layer() -> None:
    pool = Pool(Shape(block_size=4))
    pool.check(mixed_works(pool), replace(layer_of(pool.shape), softmax_scale=0.7))
