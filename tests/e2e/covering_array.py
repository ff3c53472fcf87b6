"""Small sets of test cases in which every combination of any two options occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

__all__ = ["full_product", "pairwise_cases"]

Case = dict[str, Any]


def full_product(axes: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Every combination."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def pairwise_cases(axes: Mapping[str, Sequence[Any]]) -> list[Case]:
    """A subset of the full product that holds every pair of options of any two axes (greedy, deterministic)."""
    cases = full_product(axes)
    missing = {pair for case in cases for pair in _pairs(case)}
    chosen: list[Case] = []
    while missing:
        best = max(cases, key=lambda case: len(_pairs(case) & missing))
        missing -= _pairs(best)
        chosen.append(best)
    return chosen


def _pairs(case: Case) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    items = [(name, repr(value)) for name, value in sorted(case.items())]
    return set(combinations(items, 2))
