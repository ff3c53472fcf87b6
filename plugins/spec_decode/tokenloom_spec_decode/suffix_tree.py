"""Suffix trees that are never built: a node is the set of places where its path occurs, and its count is their number.

One comparison over the text finds all places of the last token. That costs less than keeping the nodes of every suffix
of every token, takes no memory beyond the text, and counts the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

__all__ = ["SEPARATOR", "Drafted", "SuffixNode", "TextLimits", "draft_from", "grow_drafts", "longest_suffix"]

SEPARATOR = -1
"""Stands behind each sequence of a text that holds several; it is no token, so that no path leads across."""

_MOST_COMPARED = 1024
_MOST_COUNTED = 64
"""Places whose match is measured, and of these places that are counted: the latest ones."""

_Tokens = npt.NDArray[np.int32]


@final
@dataclass(frozen=True, slots=True)
class SuffixNode:
    """A node of the suffix tree of a text.

    Attributes:
        text: int32 [N].
        places: of each occurrence of its path, where the token lies that follows; ascending.
        length: tokens of its path.
        goes_on: whether a place at the end of the text is continued by what is drafted, as in a sequence's own text.
    """

    text: _Tokens
    places: tuple[int, ...]
    length: int
    goes_on: bool


@final
@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafts below a node.

    Attributes:
        token_ids, parents: as in `Proposal`; a path without branches has no parents.
        score: how many of them will be accepted, by the counts.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    score: float


def longest_suffix(text: _Tokens, last_tokens: _Tokens | None, shortest: int, longest: int) -> SuffixNode | None:
    """Finds the deepest node whose path is what a sequence ends in.

    Args:
        text: int32 [N].
        last_tokens: int32 [M], the end of the sequence; None if `text` is the sequence itself, whose end is then no
            occurrence.
        shortest, longest: lengths of paths that count, in tokens.

    Returns:
        The node, with the latest of its places; None where no path of that length occurs.
    """
    wanted = text if last_tokens is None else last_tokens
    if len(wanted) < shortest:
        return None
    is_own = last_tokens is None
    ends = np.flatnonzero(text[: len(text) - is_own] == wanted[-1])
    for offset in range(1, shortest):
        ends = ends[np.searchsorted(ends, offset) :]
        ends = ends[text[ends - offset] == wanted[-1 - offset]]
    ends = ends[-_MOST_COMPARED:]
    if len(ends) == 0:
        return None
    depth = min(longest, len(wanted))
    places = ends[:, None] - np.arange(depth)  # [E, depth], from the end of each occurrence backwards
    is_equal = (places >= 0) & (text[np.maximum(places, 0)] == wanted[::-1][:depth])
    lengths = np.cumprod(is_equal, axis=1).sum(axis=1)  # [E]
    length = int(lengths.max())
    follows = ends[lengths == length][-_MOST_COUNTED:] + 1
    return SuffixNode(text, tuple(follows.tolist()), length, is_own)


@final
@dataclass(frozen=True, slots=True)
class TextLimits:
    """What of a text is looked for, and how far it is trusted.

    Attributes:
        min_match, max_match: shortest and longest run of last tokens.
        drafts_per_match: most drafts for each token of the run.
        min_probability: paths less likely than that are left out.
    """

    min_match: int
    max_match: int
    drafts_per_match: float
    min_probability: float


def draft_from(
    text: _Tokens, last_tokens: _Tokens | None, limits: TextLimits, max_drafts: int, *, as_tree: bool
) -> Drafted:
    """Drafts what followed the longest run of last tokens that `text` holds; nothing where it holds none long enough.

    Arguments as for `longest_suffix` and `grow_drafts`.
    """
    node = longest_suffix(text, last_tokens, limits.min_match, limits.max_match)
    if node is None:
        return Drafted((), (), 0.0)
    most = min(max_drafts, int(node.length * limits.drafts_per_match))
    return grow_drafts(node, most, limits.min_probability, as_tree=as_tree)


@final
@dataclass(frozen=True, slots=True)
class _Branch:
    """A path below a node: its drafts, and the places of the node that it occurs at."""

    node: int
    path: tuple[int, ...]
    places: Sequence[int]


def grow_drafts(root: SuffixNode, max_drafts: int, min_probability: float, *, as_tree: bool) -> Drafted:
    """Drafts the likeliest paths below a node, one token after the other.

    A path is as likely as the share of the places that it occurs at. Of equally likely tokens the one that occurred
    later comes first.

    Args:
        root: where to start.
        max_drafts: most tokens.
        min_probability: paths less likely than that are left out.
        as_tree: whether to branch; a chain follows the likeliest token only.
    """
    token_ids: list[int] = []
    parents: list[int] = []
    score = 0.0
    # (-probability, when it was found, token, branch that it extends); the second one is never equal.
    found: list[tuple[float, int, int, _Branch]] = []
    num_found = 0
    branch = _Branch(-1, (), root.places)
    while len(token_ids) < max_drafts:
        for token_id, places in _children(root, branch)[: None if as_tree else 1]:
            probability = len(places) / len(root.places)
            if probability >= min_probability:
                child = _Branch(branch.node, (*branch.path, token_id), places)
                heapq.heappush(found, (-probability, num_found, token_id, child))
                num_found += 1
        if not found:
            break
        cost, _, token_id, chosen = heapq.heappop(found)
        branch = _Branch(len(token_ids), chosen.path, chosen.places)
        token_ids.append(token_id)
        parents.append(chosen.node)
        score -= cost
    is_chain = parents == list(range(-1, len(parents) - 1))
    return Drafted(tuple(token_ids), () if is_chain else tuple(parents), score)


def _children(root: SuffixNode, branch: _Branch) -> list[tuple[int, list[int]]]:
    """The tokens that follow a branch, with their places; the most frequent first, of equal ones the latest."""
    places_of: dict[int, list[int]] = {}
    for place, token_id in _following(root, branch):
        places_of.setdefault(token_id, []).append(place)
    return sorted(places_of.items(), key=lambda child: (-len(child[1]), -child[1][-1]))


def _following(root: SuffixNode, branch: _Branch) -> Iterator[tuple[int, int]]:
    """(place, token) of each place where a token follows."""
    depth, size = len(branch.path), len(root.text)
    for place in branch.places:
        index = place + depth
        if index < size:
            token_id = int(root.text[index])
            if token_id != SEPARATOR:
                yield place, token_id
        elif root.goes_on:
            # The occurrence runs into the end of the sequence, from where the drafts are what follows.
            yield place, branch.path[index - size]
