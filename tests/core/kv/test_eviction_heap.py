"""EvictionHeap: the candidate with the smallest key as of now, whatever was pushed before."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenloom.interfaces.cache import EvictionKey
from tokenloom.kv.eviction_heap import EvictionHeap


def test_pop_takes_candidates_in_order_of_their_keys() -> None:
    heap = EvictionHeap(lambda block_id: True)
    heap.update([(1, (3.0,)), (2, (1.0,)), (3, (2.0,))])
    assert [heap.pop(), heap.pop(), heap.pop(), heap.pop()] == [2, 3, 1, None]


def test_pop_passes_over_old_keys_and_blocks_in_use() -> None:
    in_use = {2}
    heap = EvictionHeap(lambda block_id: block_id not in in_use)
    heap.update([(1, (1.0,)), (2, (0.0,)), (3, (2.0,))])
    heap.update([(1, (5.0,))])
    assert heap.pop() == 3
    in_use.clear()
    heap.offer(2)
    assert heap.pop() == 2
    assert heap.pop() == 1


def test_block_that_came_into_use_after_it_was_offered_is_passed_over() -> None:
    in_use: set[int] = set()
    heap = EvictionHeap(lambda block_id: block_id not in in_use)
    heap.update([(1, (1.0,)), (2, (2.0,))])
    in_use.add(1)
    assert heap.pop() == 2
    assert heap.pop() is None
    in_use.clear()
    heap.offer(1)
    assert heap.pop() == 1


def test_forgotten_block_is_never_popped_under_its_old_key() -> None:
    heap = EvictionHeap(lambda block_id: True)
    heap.update([(1, (1.0,)), (2, (2.0,))])
    heap.forget(1)
    heap.offer(1)
    assert heap.pop() == 2
    heap.update([(1, (9.0,))])
    assert heap.pop() == 1


def test_heap_size_stays_within_a_multiple_of_the_blocks() -> None:
    heap = EvictionHeap(lambda block_id: True)
    for tick in range(5_000):
        heap.update([(tick % 8, (float(tick),))])
        assert len(heap._heap) <= 64 + 4 * 8
    assert [heap.pop() for _ in range(8)] == [(5_000 - 8 + i) % 8 for i in range(8)]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(["touch", "use", "release", "forget", "pop"]), st.integers(0, 2), st.integers(0, 3)),
        max_size=60,
    )
)
def test_heap_agrees_with_a_dict_of_keys(operations: list[tuple[str, int, int]]) -> None:
    keys: dict[int, EvictionKey] = {}
    in_use: set[int] = set()
    heap = EvictionHeap(lambda block_id: block_id not in in_use)
    for operation, block_id, number in operations:
        if operation == "touch":
            keys[block_id] = (float(number), -1.0)
            heap.update([(block_id, keys[block_id])])
        elif operation == "use":
            in_use.add(block_id)
        elif operation == "release":
            in_use.discard(block_id)
            heap.offer(block_id)
        elif operation == "forget":
            keys.pop(block_id, None)
            heap.forget(block_id)
        else:
            candidates = {b: key for b, key in keys.items() if b not in in_use}
            expected = min(candidates, key=lambda b: (candidates[b], b), default=None)
            assert heap.pop() == expected
            if expected is not None:
                keys.pop(expected)
                heap.forget(expected)
