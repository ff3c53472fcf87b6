"""The heap with replaceable keys, beside a dictionary."""

from __future__ import annotations

import random

from tokenloom_cache.keyed_heap import KeyedHeap


def test_smallest_is_that_of_a_dictionary() -> None:
    rng, heap, model = random.Random(0), KeyedHeap(), dict[int, tuple[float, ...]]()
    for _ in range(20_000):
        block_id = rng.randrange(40)
        if rng.random() < 0.6:
            key = (rng.randrange(6), rng.randrange(6))
            heap.put(block_id, key)
            model[block_id] = key
        else:
            heap.discard(block_id)
            model.pop(block_id, None)
        assert heap.smallest() == min(((key, b) for b, key in model.items()), default=None)
        assert (len(heap), block_id in heap) == (len(model), block_id in model)


def test_old_entries_are_thrown_away() -> None:
    heap = KeyedHeap()
    for number in range(10_000):
        heap.put(number % 10, (number,))
        heap.discard((number + 5) % 10)
        assert len(heap._heap) <= 64 + 2 * 10
    for block_id in range(10):
        heap.discard(block_id)
    assert heap.smallest() is None
    assert len(heap._heap) == 0
