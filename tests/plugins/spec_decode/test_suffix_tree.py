"""Nodes and drafts of the suffix tree that is never built, against one that counts every path of a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenloom_spec_decode.suffix_tree import SEPARATOR, Drafted, SuffixNode, grow_drafts, longest_suffix

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)


def _ids(token_ids: Sequence[int]) -> np.ndarray:
    return np.array(token_ids, dtype=np.int32)


def _drafted(
    token_ids: Sequence[int], max_drafts: int = 4, min_probability: float = 0.1, *, as_tree: bool = False
) -> Drafted:
    node = longest_suffix(_ids(token_ids), None, 2, 8)
    assert node is not None
    return grow_drafts(node, max_drafts, min_probability, as_tree=as_tree)


@settings(max_examples=300, deadline=None)
@given(text=TOKENS, shortest=st.integers(1, 3), extra=st.integers(0, 4))
def test_the_deepest_node_of_its_own_text(text: list[int], shortest: int, extra: int) -> None:
    expected: tuple[int, list[int]] | None = None
    for length in range(shortest, shortest + extra + 1):
        suffix = text[len(text) - length :] if length <= len(text) else None
        places = [end for end in range(length, len(text)) if suffix is not None and text[end - length : end] == suffix]
        if places:
            expected = length, places
    node = longest_suffix(_ids(text), None, shortest, shortest + extra)
    assert (None if node is None else (node.length, list(node.places))) == expected


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(TOKENS, max_size=4), last=TOKENS, shortest=st.integers(1, 3), extra=st.integers(0, 4))
def test_the_deepest_node_of_another_text(parts: list[list[int]], last: list[int], shortest: int, extra: int) -> None:
    """Occurrences end before a separator, which is what then follows, and never reach across one."""
    text = [token for part in parts for token in (*part, SEPARATOR)]
    expected: tuple[int, list[int]] | None = None
    for length in range(shortest, min(shortest + extra, len(last)) + 1):
        suffix = last[len(last) - length :]
        places = [end for end in range(length, len(text)) if text[end - length : end] == suffix]
        if places:
            expected = length, places
    node = longest_suffix(_ids(text), _ids(last), shortest, shortest + extra)
    assert (None if node is None else (node.length, list(node.places))) == expected


@settings(max_examples=300, deadline=None)
@given(text=TOKENS, max_drafts=st.integers(1, 6), min_probability=st.sampled_from([0.01, 0.3, 0.6, 1.0]))
def test_drafts_are_the_likeliest_paths(text: list[int], max_drafts: int, min_probability: float) -> None:
    """Each place is written out as the path that it stands for; every drafted path is counted among these."""
    node = longest_suffix(_ids(text), None, 1, 8)
    if node is None:
        return
    paths = []
    for place in node.places:
        grown = list(text)
        for step in range(max_drafts):
            # What lies behind the end is what the place itself says there.
            grown.append(grown[place + step])
        paths.append(tuple(grown[place : place + max_drafts]))
    # Where all continuations are the same, there is one path, and it is drafted whole.
    if len(set(paths)) == 1:
        drafted = grow_drafts(node, max_drafts, min_probability, as_tree=True)
        assert (drafted.token_ids, drafted.parents) == (paths[0], ())
        assert drafted.score == pytest.approx(max_drafts)
    chain = grow_drafts(node, max_drafts, min_probability, as_tree=False)
    tree = grow_drafts(node, max_drafts, min_probability, as_tree=True)
    assert chain.parents == ()
    if chain.token_ids:
        share = sum(path[0] == chain.token_ids[0] for path in paths) / len(paths)
        assert share == max(sum(path[0] == token for path in paths) / len(paths) for token in {p[0] for p in paths})
        assert share >= min_probability
    assert tree.score >= chain.score - 1e-9
    assert len(set(zip(tree.parents, tree.token_ids, strict=False))) == len(tree.parents)
    assert all(parent < index for index, parent in enumerate(tree.parents))


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 30, 31, 32, 33, 9, 1, 2], (30, 31, 32, 33)),
        ([1, 2, 30, 9, 1, 2, 40, 8, 1, 2], (40, 8, 1, 2)),  # one each: the later one
        ([1, 2, 40, 8, 1, 2, 30, 9, 1, 2, 40, 7, 1, 2], (40, 7, 1, 2)),  # the more frequent one, then the later one
        ([1, 2, 40, 8, 1, 2, 40, 8, 1, 2, 30, 9, 1, 2], (40, 8, 1, 2)),  # the more frequent one, though not the last
        ([5, 1, 2, 30, 9, 9, 1, 2, 40, 8, 5, 1, 2], (30, 9, 9, 1)),  # the longer path before the later one
        ([4, 4, 4], (4, 4, 4, 4)),  # a run goes on
        ([1, 2, 3, 1, 2, 3, 1, 2], (3, 1, 2, 3)),  # so does a period
    ],
)
def test_chains(token_ids: list[int], expected: tuple[int, ...]) -> None:
    drafted = _drafted(token_ids)
    assert (drafted.token_ids, drafted.parents) == (expected, ())


def test_a_tree_takes_the_likeliest_paths_whatever_their_depth() -> None:
    # Behind 1 2: three times 3 (twice 4, once 5), once 6.
    text = [1, 2, 3, 4, 0, 1, 2, 3, 4, 7, 1, 2, 6, 8, 1, 2, 3, 5, 9, 1, 2]
    drafted = _drafted(text, max_drafts=4, as_tree=True)
    assert drafted.token_ids[:2] == (3, 4)
    assert set(zip(drafted.parents, drafted.token_ids, strict=True)) >= {(-1, 3), (0, 4), (-1, 6), (0, 5)}
    assert drafted.score == pytest.approx(3 / 4 + 2 / 4 + 1 / 4 + 1 / 4)


def test_paths_below_the_least_probability_are_left_out() -> None:
    text = [1, 2, 3, 4, 0, 1, 2, 3, 4, 7, 1, 2, 6, 8, 1, 2, 3, 5, 9, 1, 2]
    assert _drafted(text, min_probability=0.6).token_ids == (3,)
    assert _drafted(text, min_probability=0.6, as_tree=True).token_ids == (3,)
    assert _drafted(text, min_probability=0.8) == Drafted((), (), 0)


def test_only_the_latest_places_count_so_that_long_texts_cost_no_more() -> None:
    node = longest_suffix(_ids([7] * 5_000), None, 1, 4)
    assert node is not None
    assert node.length == 4
    assert node.places == tuple(range(4_999 - 63, 5_000))


def test_a_path_ends_where_its_sequence_ended() -> None:
    node = longest_suffix(_ids([1, 2, 3, SEPARATOR, 3, 4, SEPARATOR]), _ids([9, 1, 2]), 2, 8)
    assert node == SuffixNode(node.text if node else _ids([]), (2,), 2, False)
    assert grow_drafts(node, 4, 0.1, as_tree=False).token_ids == (3,)
