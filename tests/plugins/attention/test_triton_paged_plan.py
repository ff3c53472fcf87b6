"""How `triton_paged` lays a step over a device: tiles, programs and splits, from counts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokenloom_attention.triton_paged.plan import MAX_PARTIAL_BYTES, StepPlan, Work, plan_step, query_blocks
from tokenloom_attention.triton_paged.tuning import Tiles, Tuning

WORK = Work(group=4, num_kv_heads=8, head_dim=128, num_processors=132, deterministic=False)
TUNING = Tuning(Tiles(64, 64, 4, 3), Tiles(128, 64, 8, 3), Tiles(128, 128, 8, 3), "of a test")


def plan(query_lens: list[int], seq_lens: list[int], window: int | None = None, work: Work = WORK) -> StepPlan:
    return plan_step(query_lens, seq_lens, window, work, TUNING)


def test_a_single_long_decode_fills_the_device() -> None:
    found = plan([1], [65536])
    assert found.tiles.rows == 16
    assert found.split_query_len == 1
    assert found.split_span % found.tiles.keys == 0
    assert found.num_splits * found.split_span >= 65536
    assert found.num_splits * WORK.num_kv_heads >= 132


def test_many_decodes_of_one_length_are_not_split() -> None:
    """256 requests x 8 KV heads are enough programs."""
    assert plan([1] * 256, [4096] * 256).num_splits == 1


def test_short_sequences_are_not_split() -> None:
    assert plan([1], [300]).num_splits == 1


def test_the_long_one_among_many_short_is_split() -> None:
    """Else its program would end long after all others."""
    found = plan([1] * 64, [512] * 63 + [65536])
    assert found.num_splits > 8
    assert found.split_span >= 512  # the short ones stay whole


def test_a_window_limits_the_spans() -> None:
    found = plan([1], [100_000], window=4096)
    assert found.num_splits * found.split_span < 4096 + 2 * found.split_span


def test_prompts_are_not_split_but_decodes_beside_them_are() -> None:
    assert plan([4000], [4000]).num_splits == 1
    found = plan([100, 1], [100, 500_000])
    assert found.tiles == TUNING.many
    assert found.split_query_len == 1
    assert found.num_splits > 1


@pytest.mark.parametrize(("num_new", "rows"), [(1, 16), (4, 16), (5, 32), (9, 64), (16, 64), (17, 128)])
def test_tiles_hold_all_rows_of_a_verification(num_new: int, rows: int) -> None:
    assert plan([num_new] * 3, [1000] * 3).tiles.rows == rows


def test_partial_results_stay_within_their_limit() -> None:
    work = replace(WORK, num_processors=100_000)
    found = plan([16] * 256, [100_000] * 256, work=work)
    cells = 256 * found.split_query_len * 32 * found.num_splits
    assert cells * (128 + 1) * 4 <= 1.1 * MAX_PARTIAL_BYTES


def test_deterministic_steps_have_one_shape_and_no_splits() -> None:
    work = replace(WORK, deterministic=True)
    found = [plan(*lens, work=work) for lens in (([1], [65536]), ([4000], [4000]), ([1, 9], [5, 9]))]
    assert {(each.tiles, each.num_splits, each.mask_all) for each in found} == {(TUNING.few, 1, True)}


def test_large_groups_get_a_tile_that_holds_them() -> None:
    assert plan([1], [100], work=replace(WORK, group=71)).tiles.rows == 128


@pytest.mark.parametrize("query_lens", [[1], [1, 1, 1], [5, 1, 9], [1, 64], [7] * 5, [3, 0, 4]])
@pytest.mark.parametrize("tokens", [1, 4, 5])
def test_query_blocks_are_enough_for_every_request(query_lens: list[int], tokens: int) -> None:
    """As the kernel counts: request i has the programs from cu_seqlens_q[i] // tokens + i on."""
    num_blocks, uniform = query_blocks(query_lens, tokens)
    needed = [-(-query_len // tokens) for query_len in query_lens]
    if uniform:
        assert num_blocks == sum(needed)
        return
    starts = [sum(query_lens[:i]) // tokens + i for i in range(len(query_lens) + 1)]
    assert starts[-1] == num_blocks
    assert all(after - before >= need for before, after, need in zip(starts, starts[1:], needed))
