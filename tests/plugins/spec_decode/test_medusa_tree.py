"""Greedy draft trees against an exhaustive search, and the order of their nodes."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenloom_spec_decode.medusa_tree import DraftTree, Path, check_paths, default_accuracies, greedy_tree


def value(path: Path, accuracies: list[list[float]]) -> float:
    product_of = 1.0
    for head, rank in enumerate(path):
        product_of *= accuracies[head][rank]
    return product_of


@settings(max_examples=60, deadline=None)
@given(
    accuracies=st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]), min_size=1, max_size=3), max_size=2),
    num_nodes=st.integers(0, 4),
)
def test_no_tree_of_that_size_gains_more(accuracies: list[list[float]], num_nodes: int) -> None:
    found = greedy_tree(accuracies, num_nodes)
    every = [
        path for depth in range(len(accuracies)) for path in product(*(range(len(a)) for a in accuracies[: depth + 1]))
    ]
    trees = (
        set(chosen)
        for size in range(num_nodes + 1)
        for chosen in combinations(every, size)
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen)
    )
    best = max(sum(value(path, accuracies) for path in tree) for tree in trees)
    assert sum(value(path, accuracies) for path in found) == pytest.approx(best)
    assert len(found) <= num_nodes
    check_paths(found)
    values = [value(path, accuracies) for path in found]
    assert values == sorted(values, reverse=True), "a shorter proposal takes the first nodes: these gain the most"


def test_a_better_second_guess_goes_first() -> None:
    assert greedy_tree([[0.2, 0.5]], 2) == [(1,), (0,)]


def test_guesses_that_are_never_right_take_no_place() -> None:
    assert greedy_tree([[0.5, 0.0], [0.0]], 8) == [(0,)]


def test_the_rule_of_thumb_falls_by_head_and_by_rank() -> None:
    accuracies = default_accuracies(4)
    assert len(accuracies) == 4
    assert all(first > second for head in accuracies for first, second in pairwise(head))
    assert all(a[0] > b[0] for a, b in pairwise(accuracies))


def test_a_tree_knows_parents_and_what_it_asks_of_each_head() -> None:
    tree = DraftTree.of([(0,), (2,), (0, 1), (2, 0)])
    assert tree == DraftTree((0, 0, 1, 1), (0, 2, 1, 0), (-1, -1, 0, 1))
    assert [tree.num_ranks(head) for head in range(3)] == [3, 2, 0]
