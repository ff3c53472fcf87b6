"""Room for drafts in a drafter's KV groups: it takes what a plan leaves over, and nobody's blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenloom.clock import VirtualClock
from tokenloom.interfaces.cache import CacheContext
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.draft_room import DraftRoom
from tokenloom.kv.manager import KVManager
from tokenloom.request import Request
from tokenloom.row_plan import build_row
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.engine_harness import build_prefix_cache
from tokenloom.testing.stub_model import full_group

BLOCK = 4
GROUPS = (full_group(), full_group(1, pool_id=1, lookahead=1, is_drafter=True))


def manager(groups: Sequence[KVGroupSpec] = GROUPS, num_blocks: int = 20, cache: str = "none") -> KVManager:
    def build_cache(count: int) -> object:
        return build_prefix_cache(cache, CacheContext(BLOCK, count, 64))

    pools = 1 + max(group.pool_id for group in groups)
    return KVManager(groups, (num_blocks,) * pools, BLOCK, b"", build_cache, VirtualClock())  # type: ignore[arg-type]


def started(kv: KVManager, name: str = "r", num_prompt: int = 6) -> Request:
    request = Request(name, list(range(num_prompt)), SamplingParams(), seed=0, max_total_tokens=60)
    kv.admit(request, kv.match(request))
    return request


@pytest.mark.parametrize(
    ("num_spare", "max_drafts", "num_drafts", "num_blocks"),
    [(9, 2, 2, 2), (9, 3, 3, 3), (0, 5, 2, 2), (1, 9, 6, 3), (2, 9, 9, 4), (0, 0, 0, 2)],
)
def test_drafts_fit_into_the_last_block_and_what_is_spare(
    num_spare: int, max_drafts: int, num_drafts: int, num_blocks: int
) -> None:
    """Six slots are taken: two are left in the second block."""
    kv = manager()
    request = started(kv)
    row = build_row(request, 6, kv, True, max_drafts, DraftRoom(kv, num_spare))
    assert row.max_drafts == num_drafts
    assert [len(table) for table in kv.tables("r")] == [2, num_blocks]
    assert [len(update.new_block_ids) for update in row.block_updates] == [2, num_blocks]


def test_what_one_request_takes_another_one_does_not_get() -> None:
    kv = manager()
    room = DraftRoom(kv, 1)
    rows = [build_row(started(kv, name), 6, kv, True, 5, room) for name in ("a", "b")]
    assert [row.max_drafts for row in rows] == [5, 2]


def test_blocks_that_drafts_took_serve_the_next_tokens() -> None:
    kv = manager()
    request = started(kv)
    build_row(request, 6, kv, True, 6, DraftRoom(kv, 9))
    before = [list(table) for table in kv.tables("r")]
    request.output_token_ids += [1, 2, 3]
    request.num_computed_tokens = 6
    row = build_row(request, 3, kv, False, 3, DraftRoom(kv, 0))
    assert row.max_drafts == 3  # slots 9, 10 and 11 are in the block that it has
    assert [table[:2] for table in kv.tables("r")] == [table[:2] for table in before]
    assert [len(table) for table in kv.tables("r")] == [3, 3]


def test_steps_that_sample_nothing_take_no_room() -> None:
    kv = manager()
    row = build_row(started(kv), 3, kv, True, 9, DraftRoom(kv, 9))
    assert (row.max_drafts, [len(table) for table in kv.tables("r")]) == (0, [1, 1])


def test_without_a_drafters_group_no_blocks_are_taken() -> None:
    kv = manager((full_group(),))
    assert kv.draft_groups == ()
    assert build_row(started(kv), 6, kv, True, 9).max_drafts == 9
    assert [len(table) for table in kv.tables("r")] == [2]
