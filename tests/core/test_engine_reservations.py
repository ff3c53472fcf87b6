"""Engine with a cache that reserves memory at admission, as a classical baseline does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

from tokenloom.errors import PluginContractError, RequestError
from tokenloom.interfaces.cache import BlockKey, CacheContext, EvictionPolicy, PrefixCache, Reservation
from tokenloom.request import RequestView
from tokenloom.testing.engine_harness import EngineHarness, build_prefix_cache
from tokenloom.testing.stub_model import full_group

Reserve = Callable[[RequestView], Reservation]


class ReservingCache(PrefixCache):
    """The built-in hash cache, with a test's own reservations."""

    def __init__(self, context: CacheContext, reserve: Reserve) -> None:
        self._inner = build_prefix_cache("hash", context)
        self._reserve = reserve

    @property
    def stores_prefixes(self) -> bool:
        return True

    def match(self, keys: Sequence[BlockKey], window_blocks: int | None = None) -> list[int]:
        return self._inner.match(keys, window_blocks)

    def insert(self, keys: Sequence[BlockKey], index: int, block_id: int) -> bool:
        return self._inner.insert(keys, index, block_id)

    def remove(self, block_id: int) -> Iterable[int]:
        return self._inner.remove(block_id)

    def is_evictable(self, block_id: int) -> bool:
        return self._inner.is_evictable(block_id)

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._inner

    def __len__(self) -> int:
        return len(self._inner)

    def reservation(self, request: RequestView) -> Reservation:
        return self._reserve(request)

    def eviction_policy(self) -> EvictionPolicy:
        return self._inner.eviction_policy()


def reserving_harness(reserve: Reserve, **options: object) -> EngineHarness:
    return EngineHarness(cache=lambda context: ReservingCache(context, reserve), **options)  # type: ignore[arg-type]


def whole_request(request: RequestView) -> Reservation:
    """Room for the longest output that the request may have."""
    return Reservation(-(-(request.max_total_tokens - 1) // 4))


@pytest.mark.parametrize("groups", [(full_group(),), (full_group(), full_group(1))])
def test_request_that_reserved_everything_is_never_preempted(groups: tuple[object, ...]) -> None:
    harness = reserving_harness(whole_request, num_blocks=(4 * 5 * len(groups) + 1,), groups=groups)
    harness.run(*[harness.request(f"r{i}", range(20 * i, 20 * i + 6), 15) for i in range(6)])
    harness.check_truth()
    assert harness.engine.stats.num_preemptions == 0
    assert max(len(plan.rows) for plan in harness.executor.plans) == 4, "four times five blocks fit"
    for plan in harness.executor.plans:
        for row in plan.rows:
            assert all(len(update.new_block_ids) == (5 if row.new else 0) for update in row.block_updates)


def test_reservation_counts_blocks_that_were_found_and_returns_after_preemption() -> None:
    harness = reserving_harness(lambda request: Reservation(4), num_blocks=(9,))
    harness.run(harness.request("first", range(9), 2))
    harness.run(*[harness.request(f"r{i}", [*range(8), 50 + i], 16) for i in range(3)])
    harness.check_truth()
    assert harness.last["r0"].num_cached_tokens == 8
    resumed = [row for plan in harness.executor.plans for row in plan.rows if row.new]
    assert all(len(row.block_updates[0].new_block_ids) >= 4 for row in resumed)


def test_reservation_that_can_never_be_given_is_refused_at_once() -> None:
    harness = reserving_harness(lambda request: Reservation(8 if request.num_prompt_tokens > 1 else 1), num_blocks=(8,))
    with pytest.raises(RequestError, match="reserves memory for 32 tokens, the whole KV cache holds 28"):
        harness.add(harness.request("big", [1, 2], 3))
    harness.run(harness.request("small", [1], 3))
    harness.check_truth()


def test_contiguous_reservation_is_refused_and_others_go_on() -> None:
    harness = reserving_harness(lambda request: Reservation(2, contiguous=request.request_id == "run"))
    with pytest.raises(PluginContractError, match="plugin cache=test"):
        harness.add(harness.request("run", [1, 2], 3))
    harness.run(harness.request("paged", [1], 3))
    harness.check_truth()


def test_reservation_beyond_the_longest_sequence_is_refused() -> None:
    """The pool has room, the block tables of the executor have not."""
    harness = reserving_harness(lambda request: Reservation(20), num_blocks=(64,), max_model_len=32)
    with pytest.raises(PluginContractError, match="80 tokens reserved, max_model_len is 32"):
        harness.add(harness.request("r", [1, 2], 3))
    assert not harness.engine.has_work()


def test_reservation_of_the_longest_sequence_is_given() -> None:
    """With max_model_len 30 in blocks of 4, the eighth block is partly of use."""
    harness = reserving_harness(lambda request: Reservation(8), num_blocks=(64,), max_model_len=30)
    harness.run(harness.request("r", [1, 2], None))
    harness.check_truth()
