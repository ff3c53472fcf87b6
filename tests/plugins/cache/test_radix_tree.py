"""The compressed tree: runs, splits, gaps, and how little of it an operation moves."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.plugins.cache.served_pool import chain
from tokenloom.interfaces.cache import BlockKey
from tokenloom.testing.footprint import footprint_bytes
from tokenloom_cache.radix_tree import RadixTree, TreeShape


def tree_with(*sequences: str) -> tuple[RadixTree, dict[BlockKey, int]]:
    """A tree of these sequences, and the block under each key; ids count up from 1."""
    tree, block_of = RadixTree(), dict[BlockKey, int]()
    for letters in sequences:
        add_all(tree, block_of, chain(letters))
    return tree, block_of


def add_all(tree: RadixTree, block_of: dict[BlockKey, int], keys: Sequence[BlockKey]) -> None:
    for index, key in enumerate(keys):
        if key not in block_of:
            block_of[key] = len(block_of) + 1
            tree.add(keys, index, block_of[key])


def check(tree: RadixTree) -> None:
    """What holds between runs, blocks and counts after every operation."""
    nodes = list(dict.fromkeys(tree._node_of.values()))
    behind: dict[BlockKey, int] = {}
    num_blocks = 0
    for node in nodes:
        behind[node.parent_key] = behind.get(node.parent_key, 0) + 1
        shift = node.start - node.origin
        assert 0 <= shift <= len(node.keys) // 2, "the front is tidied up"
        assert len(node.keys) == len(node.block_ids)
        assert node.start < node.end, "a run holds a block"
        for index in range(node.start, node.end):
            block_id, key = node.block_ids[index - node.origin], node.keys[index - node.origin]
            assert tree._node_of[block_id] is node
            assert tree._index_of[block_id] == index
            assert tree.find(key) == block_id
            assert tree.key(block_id) == key
            assert key not in tree._num_behind or index == node.end - 1, "sequences part at the end of a run"
        num_blocks += node.end - node.start
    assert behind == tree._num_behind
    assert num_blocks == len(tree) == len(tree._block_of) == len(tree._index_of)


@pytest.mark.parametrize("parting", [1, 2, 373, 374])
def test_split_keeps_every_block_of_both_sequences(parting: int) -> None:
    """A run of 375 blocks; another sequence leaves it after `parting` of them."""
    first, second = chain(range(375)), chain([*range(parting), "other", "end"])
    tree, block_of = tree_with()
    add_all(tree, block_of, first)
    assert tree.shape() == TreeShape(375, 1, 1, 1, 0)
    assert tree.prefix(second) == [block_of[key] for key in first[:parting]], "found before the split"
    assert tree.shape().num_nodes == 1, "a search splits nothing"
    add_all(tree, block_of, second)
    check(tree)
    for keys in (first, second):
        assert tree.prefix(keys) == [block_of[key] for key in keys]
    assert tree.shape() == TreeShape(377, 3, 2, 2, parting)


def test_sequence_that_ends_inside_a_run_splits_nothing() -> None:
    tree, _ = tree_with("abcdef", "abc")
    assert tree.shape().num_nodes == 1
    assert tree.prefix(chain("abc")) == [1, 2, 3]
    assert tree.prefix(chain("abcdefgh")) == [1, 2, 3, 4, 5, 6]
    assert (tree.prefix([]), tree.prefix(chain("xbc"))) == ([], [])


def test_keys_that_do_not_chain_are_our_own_bug() -> None:
    """A search would go in circles, for a key that stands at another place of its sequence."""
    tree = RadixTree()
    a, b, c, d = (bytes([number]) * 32 for number in range(4))
    tree.add([a, b, c], 0, 1)
    tree.add([a, b, c], 1, 2)
    with pytest.raises(AssertionError, match=f"{b.hex()} is block 1 here and 0 there"):
        tree.prefix([b])
    with pytest.raises(AssertionError, match="is block 1 here and 2 there"):
        tree.run_before([d, d, b], 3, 3)
    with pytest.raises(AssertionError, match="is block 0 here and 1 there"):
        tree.add([d, a, c], 2, 3)


def test_shape_counts_what_is_shared() -> None:
    tree, _ = tree_with("abcde", "abcxy", "abczz", "abcxq", "mn")
    # abc is on the way to four leaves, x to two.
    assert tree.shape() == TreeShape(12, 7, 5, 3, 4)
    assert RadixTree().shape() == TreeShape(0, 0, 0, 0, 0)


def test_runs_are_not_joined_when_a_branch_is_gone() -> None:
    tree, block_of = tree_with("abcde", "abcxy")
    for key in reversed(chain("abcxy")[3:]):
        tree.take_out(block_of[key])
    check(tree)
    assert tree.shape() == TreeShape(5, 2, 1, 2, 0)
    assert tree.prefix(chain("abcde")) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_hit_stops_where_a_block_was_taken_out(taken: int) -> None:
    tree, block_of = tree_with("abcdef", "abxy")
    keys = chain("abcdef")
    tree.take_out(block_of[keys[taken]])
    check(tree)
    assert tree.prefix(keys) == [block_of[key] for key in keys[:taken]]
    assert tree.run_before(keys, 6, 6) == [block_of[key] for key in keys[taken + 1 :]]
    tree.add(keys, taken, 99)
    check(tree)
    assert tree.prefix(keys) == [99 if index == taken else block_of[key] for index, key in enumerate(keys)]


def test_blocks_whose_predecessor_is_missing_stand_alone() -> None:
    tree, keys = RadixTree(), chain("abcdef")
    for index in (4, 2, 5, 1):
        tree.add(keys, index, 10 + index)
        check(tree)
    assert tree.prefix(keys) == []
    assert tree.run_before(keys, 6, 2) == [14, 15]
    assert tree.run_before(keys, 6, 4) == [14, 15], "block 3 is missing"
    assert tree.run_before(keys, 3, 2) == [11, 12]
    assert tree.parent_key(11) == keys[0]


def test_random_histories_agree_with_a_dictionary() -> None:
    rng, tree, block_of = random.Random(2), RadixTree(), dict[BlockKey, int]()
    free = list(range(1, 200))
    for _ in range(3_000):
        keys = chain(rng.choices("ab", [3, 1], k=rng.randrange(1, 14)))
        index = rng.randrange(len(keys))
        if keys[index] not in block_of and free:
            block_of[keys[index]] = free.pop()
            tree.add(keys, index, block_of[keys[index]])
        elif block_of and rng.random() < 0.7:
            key = rng.choice(list(block_of))
            tree.take_out(block_of[key])
            free.append(block_of.pop(key))
        check(tree)
        found = [block_of.get(key) for key in keys]
        assert tree.prefix(keys) == (found[: found.index(None)] if None in found else found)
        end, count = len(keys), rng.randrange(len(keys) + 1)
        tail = found[end - count :]
        gap = max((i + 1 for i, block_id in enumerate(tail) if block_id is None), default=0)
        assert tree.run_before(keys, end, count) == tail[gap:]


class _CountedKey(bytes):
    """Counts how often it is compared."""

    num_compared = 0

    def __eq__(self, other: object) -> bool:
        type(self).num_compared += 1
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        type(self).num_compared += 1
        return super().__ne__(other)

    __hash__ = bytes.__hash__


@pytest.mark.parametrize("parting", [1, 700, 4_095, 4_096])
def test_search_compares_few_keys_however_long_the_run(parting: int) -> None:
    tree, block_of = RadixTree(), dict[BlockKey, int]()
    add_all(tree, block_of, chain(range(4_096)))
    keys = [_CountedKey(key) for key in chain([*range(parting), *["other"] * (4_096 - parting)])]
    _CountedKey.num_compared = 0
    assert len(tree.prefix(keys)) == parting
    assert 0 < _CountedKey.num_compared <= 20


@pytest.mark.parametrize("from_front", [True, False])
def test_splits_move_the_shorter_part(from_front: bool) -> None:
    """A sequence leaves a run of 2,000 after each of its blocks in turn: what is moved is one block each time."""
    tree, block_of, keys = RadixTree(), dict[BlockKey, int](), chain(range(2_000))
    add_all(tree, block_of, keys)
    kept = tree._node_of[block_of[keys[-1 if from_front else 0]]]
    order = range(1, 1_999) if from_front else range(1_999, 1, -1)
    for number, index in enumerate(order):
        tree.add([*keys[:index], chain(["other", index])[-1]], index, 10_000 + index)
        assert tree._node_of[block_of[keys[-1 if from_front else 0]]] is kept
        assert kept.end - kept.start == 1_999 - number
        assert len(kept.keys) <= 2 * (kept.end - kept.start), "what was dropped does not pile up"
    check(tree)


def test_blocks_in_the_middle_move_few_times() -> None:
    """Random splits: a block moves O(log n) times, not once for each."""
    tree, block_of, keys, rng = RadixTree(), dict[BlockKey, int](), chain(range(4_096)), random.Random(0)
    add_all(tree, block_of, keys)
    num_moved = 0
    for index in rng.sample(range(1, 4_096), 1_000):
        before = [tree._node_of[block_of[keys[at]]] for at in range(0, 4_096, 16)]
        tree.add([*keys[:index], chain(["other", index])[-1]], index, 10_000 + index)
        num_moved += sum(tree._node_of[block_of[keys[at]]] is not before[at // 16] for at in range(0, 4_096, 16))
    assert num_moved <= 256 * 12, f"{num_moved} moves of 256 blocks"
    check(tree)


def test_nothing_is_left_when_all_blocks_are_gone() -> None:
    tree = RadixTree()
    size = footprint_bytes(tree)
    for _ in range(3):
        block_of: dict[BlockKey, int] = {}
        for letters in ("abcdef", "abxy", "abcq", "m"):
            add_all(tree, block_of, chain(letters))
        for block_id in random.Random(0).sample(sorted(block_of.values()), len(block_of)):
            tree.take_out(block_id)
            check(tree)
    assert (len(tree), tree._num_behind) == (0, {})
    assert footprint_bytes(tree) <= size + 2_000
