"""Checks the merges of a BPE vocabulary before the library gets them: wrong ones can break it down."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import chain

__all__ = ["fault_in_merges"]


def fault_in_merges(vocabulary: Container[str], merges: Sequence[tuple[str, str]]) -> str | None:
    """Says which merge has a half or a result that is no token, or returns None.

    Args:
        vocabulary: every token.
        merges: the pairs, in order.
    """
    known = vocabulary.__contains__
    # Half a million merges pass here without a step of Python for each.
    if all(map(known, chain.from_iterable(merges))) and all(map(known, map("".join, merges))):
        return None
    return next(
        f"merge {index}, {left[:40]!r} with {right[:40]!r}, needs the token {token[:80]!r}, which does not exist"
        for index, (left, right) in enumerate(merges)
        for token in (left, right, left + right)
        if token not in vocabulary
    )
