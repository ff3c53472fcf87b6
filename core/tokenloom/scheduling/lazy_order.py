"""Sorting that costs only as much as is read: a step serves some dozens of perhaps ten thousand waiting requests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["least_first"]

_NUM_FIRST = 64
_MANY = 512
"""Fewer are sorted at once."""


def least_first(keys: npt.NDArray[np.float64], among: npt.NDArray[np.bool_] | None = None) -> Iterator[int]:
    """Yields indices from the least key to the largest; of equal keys the first comes first.

    Nothing is computed before the first is asked for: O(n) for some dozens, O(n log n) for more.

    Args:
        keys: one for each request.
        among: leaves those out for which it is false.
    """
    indices = np.arange(len(keys)) if among is None else np.flatnonzero(among)
    if len(indices) > _MANY:
        chosen = keys[indices]
        is_first = chosen <= np.partition(chosen, _NUM_FIRST)[_NUM_FIRST]
        yield from _sorted(keys, indices[is_first])
        indices = indices[~is_first]
    yield from _sorted(keys, indices)


def _sorted(keys: npt.NDArray[np.float64], indices: npt.NDArray[np.int64]) -> list[int]:
    order: list[int] = indices[np.argsort(keys[indices], kind="stable")].tolist()
    return order
