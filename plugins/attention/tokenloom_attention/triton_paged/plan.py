"""How one step is laid over a GPU: tiles, programs, and into how many spans long sequences are split.

Everything follows from counts that the host knows, so nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import triton

from tokenloom_attention.triton_paged.tuning import Tiles, Tuning

__all__ = ["MAX_SPLIT_QUERY_LEN", "StepPlan", "Work", "plan_step", "query_blocks"]

MAX_SPLIT_QUERY_LEN = 16
"""Requests with more new tokens are not split: they fill many programs, and their partial results are large."""

MIN_SPAN = 256
"""Fewest keys of a split. Below, writing and adding up the parts costs about what the split gains."""

PROGRAMS_PER_PROCESSOR = 4
"""Programs that a multiprocessor should get where there is work for them: some wait for memory while others compute,
and those that end last are short."""

MAX_PARTIAL_BYTES = 64 << 20
"""Most memory for the results of splits."""


@final
@dataclass(frozen=True, slots=True)
class Work:
    """What is known of a backend's steps in advance.

    Attributes:
        group: query heads of one KV head.
        num_kv_heads: Hkv.
        head_dim: D.
        num_processors: multiprocessors of the device.
        deterministic: a token's result may not depend on what else is in its step.
    """

    group: int
    num_kv_heads: int
    head_dim: int
    num_processors: int
    deterministic: bool


@final
@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step's launch.

    Attributes:
        tiles: shape of a program.
        num_blocks: query blocks, an upper bound: the first axis of the grid.
        uniform_query_len: the number of new tokens of every request if they are equal, else 0.
        num_splits: spans of the longest split request; 1 if nothing is split.
        split_query_len: requests of at most that many new tokens are split; 0 if nothing is.
        split_span: keys of a span, a multiple of tiles.keys.
        mask_all: every tile goes through the same instructions, whether it needs a mask or not.
        skip_fresh: requests that have nothing cached are left to somebody else.
    """

    tiles: Tiles
    num_blocks: int
    uniform_query_len: int
    num_splits: int = 1
    split_query_len: int = 0
    split_span: int = 0
    mask_all: bool = False
    skip_fresh: bool = False


def plan_step(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    window: int | None,
    work: Work,
    tuning: Tuning,
    *,
    skip_fresh: bool = False,
) -> StepPlan:
    """Chooses the launch of a step.

    Args:
        query_lens, seq_lens: new tokens and length of each request, on the host.
        window: of the layers.
        work: what the backend was built for.
        tuning: tiles of the device.
        skip_fresh: see `StepPlan`.
    """
    lens = [pair for pair in zip(query_lens, seq_lens, strict=True) if not skip_fresh or pair[0] != pair[1]]
    tiles = _tiles(max((query_len for query_len, _ in lens), default=0), work, tuning)
    num_blocks, uniform_query_len = query_blocks(query_lens, tiles.rows // work.group)
    plan = StepPlan(tiles, num_blocks, uniform_query_len, mask_all=work.deterministic, skip_fresh=skip_fresh)
    return plan if work.deterministic else _with_splits(plan, lens, len(query_lens), window, work)


def query_blocks(query_lens: Sequence[int], tokens: int) -> tuple[int, int]:
    """The programs' number along a step's new tokens, at most `tokens` each, and the uniform query length or 0.

    A program finds its request by itself: by division if all have as many tokens, else by a search that needs up to one
    program more for each request.
    """
    longest = max(query_lens, default=0)
    if longest > 0 and min(query_lens) == longest:
        return len(query_lens) * -(-longest // tokens), longest
    return sum(query_lens) // tokens + len(query_lens), 0


def _tiles(longest: int, work: Work, tuning: Tuning) -> Tiles:
    """Results of a row do not depend on a tile's other rows, but on its shape: deterministic steps have one shape."""
    fewest = max(tuning.fewest, triton.next_power_of_2(work.group))
    rows = max(fewest, triton.next_power_of_2(longest * work.group))
    if work.deterministic:
        return replace(tuning.few, rows=max(fewest, tuning.few.rows))
    if rows <= tuning.few.rows:
        return replace(tuning.few, rows=rows)
    return replace(tuning.many, rows=max(fewest, tuning.many.rows))


def _with_splits(
    plan: StepPlan, lens: Sequence[tuple[int, int]], num_requests: int, window: int | None, work: Work
) -> StepPlan:
    """Splits sequences so that no program has much more keys than the average of a well filled device."""
    tokens = plan.tiles.rows // work.group
    longest = split_query_len = total = 0
    for query_len, seq_len in lens:
        num_keys = seq_len if window is None else min(seq_len, window + query_len)
        total += -(-query_len // tokens) * num_keys
        if query_len <= MAX_SPLIT_QUERY_LEN:
            longest = max(longest, num_keys)
            split_query_len = max(split_query_len, query_len)
    fair = total * work.num_kv_heads / (work.num_processors * PROGRAMS_PER_PROCESSOR)
    # Up to a quarter above the fair share is no reason to split: parts cost something to put together.
    wanted = longest / max(fair, MIN_SPAN) + 0.75
    row_bytes = num_requests * split_query_len * work.num_kv_heads * work.group * (work.head_dim + 1) * 4
    num_splits = min(int(wanted), MAX_PARTIAL_BYTES // max(row_bytes, 1))
    if num_splits <= 1:
        return plan
    keys = plan.tiles.keys
    span = -(-longest // (num_splits * keys)) * keys
    # A window's first slot may lie anywhere in a tile, and spans begin with whole tiles.
    reach = longest if window is None else longest + keys - 1
    return replace(plan, num_splits=-(-reach // span), split_query_len=split_query_len, split_span=span)
