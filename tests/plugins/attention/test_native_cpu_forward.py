"""`native_cpu` where the conformance suite does not go: odd sizes, several threads, every level of instructions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal

import pytest
import torch

from tests.plugins.attention.native_cpu_pool import LEVELS, at_level, make_pool
from tokenloom.testing.paged_pool import Pool, Shape, Work, layer_of, random_parents

DTYPES = (torch.float32, torch.bfloat16)


@contextmanager
def threads(count: int) -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [2, 6, 20, 24, 40, 72, 256])
def test_forward_with_odd_head_sizes_matches_the_reference(head_dim: int, dtype: torch.dtype, level: str) -> None:
    """Sizes that fill no vector: what lies behind a head's last element must not be used."""
    with at_level(level):
        for block_size in (5, 16):
            pool = make_pool(Shape(6, 2, head_dim=head_dim, block_size=block_size, dtype=dtype))
            works = [Work(pool.paged(33), 33), Work(pool.paged(40, 39), 1), Work(pool.paged(150, 145), 5)]
            pool.check(works, layer_of(pool.shape), case=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("block_size", [1, 3, 7, 8, 20, 48, 256])
def test_forward_at_odd_block_sizes_matches_the_reference(
    block_size: int, kv_dtype: Literal["auto", "int8"], dtype: torch.dtype, level: str
) -> None:
    """Blocks that hold no whole number of vectors or words, or more keys than a chunk."""
    with at_level(level):
        for window in (None, 19):
            pool = make_pool(Shape(4, 2, head_dim=32, block_size=block_size, dtype=dtype), kv_dtype=kv_dtype)
            works = [Work(pool.paged(length, length - new), new) for length, new in ((1, 1), (129, 1), (300, 3))]
            works += [Work(pool.paged(140), 140), Work(pool.paged(60, 40), 20, random_parents(20, 0))]
            if window is not None:
                for work in works:
                    pool.free_left_of_window(work.paged, window)
            pool.check(works, layer_of(pool.shape, window, 3.0), num_padding=2, case=level)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(71, 1), (48, 1), (100, 2), (5, 5)])
def test_forward_with_many_or_few_heads_matches_the_reference(heads: tuple[int, int], dtype: torch.dtype) -> None:
    """More query heads on a KV head than an item has rows, and exactly as many."""
    pool = make_pool(Shape(*heads, head_dim=64, dtype=dtype))
    works = [Work(pool.paged(33), 33), Work(pool.paged(40, 39), 1), Work(pool.paged(21, 16), 5)]
    pool.check(works, layer_of(pool.shape))


@pytest.mark.parametrize("num_threads", [2, 3, 8])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_forward_on_several_threads_matches_the_reference(num_threads: int, kv_dtype: Literal["auto", "int8"]) -> None:
    """Few rows and long sequences are split over the keys, and the parts put together."""
    with threads(num_threads):
        for window, soft_cap in ((None, None), (200, None), (None, 2.0)):
            pool = make_pool(Shape(6, 3, head_dim=64, block_size=16), num_blocks=1200, kv_dtype=kv_dtype)
            works = [Work(pool.paged(length, length - new), new) for length, new in ((2500, 1), (2000, 5), (1000, 300))]
            works.append(Work(pool.paged(700, 680), 20, random_parents(20, 0)))
            pool.check(works, layer_of(pool.shape, window, soft_cap), num_padding=1, case="mixed")
            pool.check(works[:1], layer_of(pool.shape, window, soft_cap), case="one row")


def test_codes_are_multiplied_as_exactly_as_floats() -> None:
    """An int8 cache met as whole numbers, against floats: after rounding to bfloat16 few bits differ. With queries or
    weights of one byte most of them would."""
    found = []
    for level in ("avx512", "avx2"):
        with at_level(level):
            pool = make_pool(Shape(6, 2, head_dim=64, block_size=16, dtype=torch.bfloat16), 60, "int8")
            found.append(pool.step([Work(pool.paged(n, n - 1), 1) for n in (40, 150, 260)], layer_of(pool.shape)))
    assert (found[0] == found[1]).float().mean() > 0.9


def share_prefix(pool: Pool, length: int, ends: list[tuple[int, int]], parents: tuple[int, ...] | None) -> list[Work]:
    """Requests with the same first `length` tokens in the same blocks, then (cached, new) tokens of their own."""
    first = pool.paged(length, length)
    works = []
    for cached, new in ends:
        paged = pool.paged(length + cached + new)
        paged.key[:length], paged.value[:length] = first.key, first.value
        paged.blocks = first.blocks[: length // pool.shape.block_size]
        pool.blocks_of(paged, length + cached + new)
        paged.num_computed = length
        if cached:
            pool.write([Work(paged, cached)])
        paged.num_computed += cached
        works.append(Work(paged, new, parents if new > 1 else None))
    return works


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_a_shared_prefix_is_read_once(kv_dtype: Literal["auto", "int8"], dtype: torch.dtype, num_threads: int) -> None:
    """Decodes, verifications and trees whose tables begin with the same blocks, beside a prompt and a stranger."""
    with threads(num_threads):
        for parents in (None, (-1, 0, 0, 1)):
            pool = make_pool(Shape(6, 3, head_dim=64, block_size=16, dtype=dtype), 700, kv_dtype)
            works = share_prefix(pool, 640, [(n, 1) for n in range(20)] + [(40, 4), (0, 4), (200, 1)], parents)
            alone = [Work(pool.paged(400, 399), 1), Work(pool.paged(130), 130)]
            layer = layer_of(pool.shape)
            pool.check([*works[:9], *alone, *works[9:]], layer, num_padding=1, case="shared prefix")
            num_keys = pool.backend.prepare(pool.batch(works)).work.num_keys  # type: ignore[attr-defined]
            assert num_keys < 2 * 640 + sum(work.seq_len - 640 for work in works) + 128


def test_prefixes_of_several_lengths_are_shared_where_it_saves_most() -> None:
    pool = make_pool(Shape(6, 3, head_dim=64, block_size=16), 700)
    works = share_prefix(pool, 256, [(1, 1)] * 2 + [(600, 1)] * 2, None)
    for work in works[3:]:  # the last two have 512 tokens in common
        other, paged = works[2].paged, work.paged
        paged.key[:512], paged.value[:512] = other.key[:512], other.value[:512]
        paged.blocks[:32] = other.blocks[:32]
    stranger = share_prefix(pool, 384, [(0, 1), (3, 1)], None)
    pool.check([works[2], stranger[0], *works[:2], works[3], stranger[1]], layer_of(pool.shape), case="two prefixes")


@pytest.mark.parametrize("changes", [{"deterministic": True}, {}], ids=["deterministic", "window"])
def test_nothing_is_shared_where_it_would_change_bits_or_what_is_seen(changes: dict[str, bool]) -> None:
    pool = make_pool(Shape(6, 3, head_dim=64, block_size=16, **changes), 700)  # type: ignore[arg-type]
    works = share_prefix(pool, 512, [(n, 1) for n in range(5)], None)
    window = None if changes else 100
    pool.check(works, layer_of(pool.shape, window), case="unshared")


def test_deterministic_results_do_not_depend_on_the_threads() -> None:
    results = []
    for num_threads in (1, 2, 5):
        with threads(num_threads):
            pool = make_pool(Shape(6, 3, head_dim=64, block_size=16, deterministic=True), num_blocks=600)
            works = [Work(pool.paged(2500, 2499), 1), Work(pool.paged(1000, 900), 100)]
            results.append(pool.step(works, layer_of(pool.shape)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_forward_on_another_python_thread_matches_the_reference() -> None:
    """The number of torch's threads belongs to the thread that asks; a server's step loop is another than the main."""

    def step() -> None:
        pool = make_pool(Shape(6, 3, head_dim=64, block_size=16), num_blocks=600)
        pool.check([Work(pool.paged(2500, 2499), 1)], layer_of(pool.shape))

    with threads(2), ThreadPoolExecutor(1) as thread:
        thread.submit(step).result()


def test_forward_of_padding_alone_is_zero() -> None:
    """Only padding."""
    pool = make_pool(Shape())
    metadata = pool.backend.prepare(pool.batch([], num_padding=3))
    query = torch.full((3, pool.shape.num_heads, pool.shape.head_dim), torch.nan)
    out = pool.backend.forward(query, pool.kv, layer_of(pool.shape), metadata)
    assert torch.equal(out, torch.zeros_like(query))


@pytest.mark.parametrize("level", LEVELS)
def test_exact_numbers_give_exact_results(level: str) -> None:
    """Weights of equal scores are equal, and one that is 88 below the largest is nothing."""
    with at_level(level):
        pool = make_pool(Shape(1, 1, head_dim=16, block_size=16))
        paged = pool.paged(64, 0)
        paged.query.zero_()
        paged.value.copy_(torch.arange(64.0)[:, None, None].expand(64, 1, 16))
        out = pool.step([Work(paged, 64)], layer_of(pool.shape))
        assert torch.allclose(out[:, 0, 0], torch.arange(64.0) / 2, rtol=1e-6, atol=0)
        far = pool.paged(2, 0)
        far.query.fill_(1.0)
        far.key.copy_(torch.tensor([0.0, 8.0])[:, None, None].expand(2, 1, 16))
        out = pool.step([Work(far, 2)], layer_of(pool.shape))
        assert torch.allclose(out[1], far.value[1], rtol=1e-6, atol=1e-7)
