"""Small sets of test cases in which every combination of any two options occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

__all__ = ["full_product", "once_each_cases", "pairwise_cases"]

Case = dict[str, Any]


def full_product(axes: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Every combination."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def once_each_cases(axes: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Cases that hold every option of the first axis with every option of each other one, and no more."""
    (first, options), *others = axes.items()
    longest = max(len(values) for _, values in others)
    # Every axis starts elsewhere, and the second option of the first axis too, so that company changes.
    return [
        {first: option} | {name: values[(turn + at * start) % len(values)] for at, (name, values) in enumerate(others)}
        for start, option in enumerate(options)
        for turn in range(longest)
    ]


def pairwise_cases(axes: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Cases that hold every pair of options of any two axes (greedy, deterministic)."""
    numbers = [range(len(options)) for options in axes.values()]
    missing: dict[_Choices, None] = {
        ((first, option), (second, other)): None
        for first, second in combinations(range(len(numbers)), 2)
        for option, other in product(numbers[first], numbers[second])
    }
    chosen: list[_Choices] = []
    while missing:
        seeds = list(missing)
        drawn = [
            _complete(seeds[turn * len(seeds) // _NUM_DRAWN], numbers, missing, turn) for turn in range(_NUM_DRAWN)
        ]
        chosen.append(max(drawn, key=lambda choices: sum(pair in missing for pair in combinations(choices, 2))))
        for pair in combinations(chosen[-1], 2):
            missing.pop(pair, None)
    return [{name: axes[name][option] for name, (_, option) in zip(axes, choices, strict=True)} for choices in chosen]


_Choices = tuple[tuple[int, int], ...]
"""(number of an axis, number of its option), in the order of the axes."""
_NUM_DRAWN = 10
"""Cases to choose the next one from; the full product would be too many."""


def _complete(seed: _Choices, numbers: Sequence[range], missing: Mapping[_Choices, None], turn: int) -> _Choices:
    """A case that holds `seed`, a pair, and option by option as many of the missing pairs as it can."""
    fixed = dict(seed)
    for place in range(len(numbers)):
        axis = (place + turn) % len(numbers)
        if axis not in fixed:
            gains = [sum(_pair((axis, o), other) in missing for other in fixed.items()) for o in numbers[axis]]
            fixed[axis] = gains.index(max(gains))
    return tuple(sorted(fixed.items()))


def _pair(one: tuple[int, int], other: tuple[int, int]) -> _Choices:
    return (one, other) if one < other else (other, one)
