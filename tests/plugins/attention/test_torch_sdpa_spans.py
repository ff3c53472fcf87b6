"""How `torch_sdpa` cuts a step: every query row once, every visible slot within reach, no block that was freed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from tests.plugins.attention.torch_sdpa_pool import make_pool
from tokenloom.testing.paged_pool import Shape, Work
from tokenloom_attention.torch_sdpa.spans import RequestWork, cut_aligned, cut_rows, pack
from tokenloom_attention.torch_sdpa.tiles import GroupedTile, SdpaTile, TileLimits, plan_tiles

WORKS = [
    RequestWork(0, 5, num_computed, num_rows, window, is_tree)
    for num_computed in (0, 1, 15, 16, 40)
    for num_rows in (1, 2, 16, 33)
    for window in (None, 1, 5, 100)
    for is_tree in (False, True)
]


@pytest.mark.parametrize("max_rows", [1, 7, 16, 100])
def test_cut_rows_covers_each_row_once_with_all_it_can_see(max_rows: int) -> None:
    for work in WORKS:
        spans = list(cut_rows(work, max_rows))
        rows = [row for span in spans for row in range(span.row_begin, span.row_end)]
        assert rows == list(range(5, 5 + work.num_rows))
        for span in spans:
            last = work.seq_len if work.is_tree else span.first_slot + span.num_rows
            assert (span.kv_begin, span.kv_end) == (work.first_visible(span.first_slot), last)
            assert (span.kv_low, span.kv_high) == (span.kv_begin, span.kv_end)
            assert span.num_rows == span.row_end - span.row_begin <= max_rows


def test_cut_aligned_covers_each_row_once_and_reads_only_what_exists() -> None:
    for work in WORKS:
        spans = list(cut_aligned(work, 16))
        rows = [row for span in spans for row in range(span.row_begin, span.row_end)]
        assert rows == list(range(5, 5 + work.num_rows))
        for span in spans:
            assert span.first_slot % 16 == 0
            assert span.num_rows == 16
            assert work.first_visible(work.num_computed) <= span.kv_low < span.kv_high <= work.seq_len
            assert span.kv_begin <= span.kv_low
            assert span.kv_high <= span.kv_end


def test_cut_aligned_shapes_of_a_chain_depend_on_the_slot_alone() -> None:
    for window in (None, 1, 5, 100):
        whole = {span.first_slot: span for span in cut_aligned(RequestWork(0, 0, 0, 90, window, False), 16)}
        for num_computed in range(90):
            for span in cut_aligned(RequestWork(3, 50, num_computed, 90 - num_computed, window, False), 16):
                of_whole = whole[span.first_slot]
                assert (span.kv_begin, span.kv_end) == (of_whole.kv_begin, of_whole.kv_end)


def test_first_visible_of_a_tree_is_measured_from_its_root() -> None:
    assert RequestWork(0, 0, 20, 8, 5, is_tree=True).first_visible(27) == 16
    assert RequestWork(0, 0, 20, 8, 5, is_tree=False).first_visible(27) == 23


def test_pack_keeps_every_span_and_its_limits() -> None:
    shuffle = random.Random(0)
    spans = [
        span
        for request in range(200)
        for span in cut_rows(
            RequestWork(request, 0, shuffle.randrange(300), shuffle.choice([1, 1, 1, 4]), None, False), 16
        )
    ]
    groups = list(pack(spans, max_slots=1000, max_cells=1500))
    assert Counter(id(span) for group in groups for span in group) == Counter(id(span) for span in spans)
    for group in groups:
        longest = group[0].num_slots
        slots = longest * len(group)
        assert {span.num_rows for span in group} == {group[0].num_rows}
        assert max(span.num_slots for span in group) == longest
        assert len(group) == 1 or (slots <= 1000 and slots * group[0].num_rows <= 1500)
        assert slots - sum(span.num_slots for span in group) <= 250


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("can_sdpa", [False, True])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("with_tree", [False, True])
def test_plan_tiles_holds_every_row_once_within_small_limits(
    with_tree: bool, window: int | None, can_sdpa: bool, deterministic: bool
) -> None:
    pool = make_pool(Shape(block_size=4))
    works = [
        Work(pool.paged(num_computed + num_new), num_new)
        for num_computed, num_new in ((0, 200), (7, 1), (90, 1), (30, 90), (5, 4), (0, 12), (64, 64))
    ]
    for work in works:
        work.paged.num_computed = work.paged.key.shape[0] - work.num_new
    if with_tree:
        works.append(Work(pool.paged(3), 3, (-1, 0, 0)))
    batch = pool.batch(works)
    limits = TileLimits(4, 4, 2, grouped_rows=8, max_slots=64, max_cells=2048, deterministic=deterministic)
    tiles = plan_tiles(batch, window, can_sdpa, limits)
    rows: list[int] = []
    for tile in tiles:
        if isinstance(tile, GroupedTile):
            num_spans, num_rows, num_slots = tile.shape
            assert tile.slots.shape == (num_spans * num_slots,)
            assert deterministic or num_spans == 1 or num_rows * num_spans * num_slots <= 512
            rows += tile.targets.tolist()
        else:
            assert can_sdpa
            assert not deterministic
            num_rows = tile.row_end - tile.row_begin
            assert tile.visible is None or tile.visible.numel() <= 2048
            rows += range(tile.row_begin, tile.row_end)
    assert sorted(rows) == list(range(batch.num_tokens))
    assert all(int(tile.slots.min()) >= 4 for tile in tiles), "the null block is read"


def test_plan_tiles_uses_a_causal_tile_for_a_whole_prompt() -> None:
    pool = make_pool(Shape(block_size=4))
    batch = pool.batch([Work(pool.paged(50), 50)])
    limits = TileLimits(4, 4, 2, grouped_rows=8, max_slots=64, max_cells=2048, deterministic=False)
    for window, is_causal in ((None, True), (50, True), (49, False)):
        tiles = plan_tiles(batch, window, True, limits)
        assert all(isinstance(tile, SdpaTile) and (tile.visible is None) == is_causal for tile in tiles)


def test_plan_tiles_of_decodes_of_equal_length_is_one_tile() -> None:
    pool = make_pool(Shape(block_size=4))
    works = [Work(pool.paged(9, 8), 1) for _ in range(5)]
    limits = TileLimits(4, 4, 2, grouped_rows=8, max_slots=64, max_cells=2048, deterministic=False)
    (tile,) = plan_tiles(pool.batch(works), None, True, limits)
    assert isinstance(tile, GroupedTile)
    assert tile.shape == (5, 1, 9)
    assert bool((tile.bias == 0).all())
    assert torch.equal(tile.rows.sort().values, torch.arange(5))


@pytest.mark.parametrize("window", [None, 9])
def test_plan_tiles_of_a_deterministic_chunk_are_the_same_beside_a_tree(window: int | None) -> None:
    pool = make_pool(Shape(block_size=4))
    chunk = Work(pool.paged(60, 20), 40)
    tree = Work(pool.paged(3), 3, (-1, 0, 0))
    limits = TileLimits(4, 4, 2, grouped_rows=8, max_slots=64, max_cells=2048, deterministic=True)
    alone = plan_tiles(pool.batch([chunk]), window, True, limits)
    beside = plan_tiles(pool.batch([chunk, tree]), window, True, limits)
    assert len(beside) == len(alone) + 1
    for left, right in zip(alone, beside):
        assert isinstance(left, GroupedTile)
        assert isinstance(right, GroupedTile)
        assert left.shape == right.shape
        assert torch.equal(left.slots, right.slots)
        assert torch.equal(left.targets, right.targets)
        real = slice(None) if left.real is None else left.real  # padding rows are thrown away
        assert torch.equal(left.bias[:, :, real], right.bias[:, :, real])
