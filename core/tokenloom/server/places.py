"""Places of an engine, shared by all front ends: a request takes its places before any work is done for it."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import final

from tokenloom.errors import OverloadedError

__all__ = ["HeldPlaces", "Places"]


@final
class Places:
    """Counts the choices under way in all front ends against what the engine holds, running and queued.

    Lock-free: each front end writes its own element of a shared array. It adds first and reads the sum then, so that
    two that come at the same time may both be refused, but never both admitted to the last place.

    Args:
        counts: one element for each front end, in memory that they share.
        own: index of this one's.
    """

    def __init__(self, counts: MutableSequence[int], own: int = 0) -> None:
        self._counts = counts
        self._own = own
        counts[own] = 0

    def reserve(self, num_choices: int, capacity: int | None) -> HeldPlaces:
        """Takes places, or none.

        Args:
            num_choices: of the request, over all its prompts.
            capacity: most choices that the engine runs and queues; None for no limit.

        Raises:
            OverloadedError: not so many are free.
        """
        self._counts[self._own] += num_choices
        if capacity is not None:
            taken = sum(self._counts)
            if taken > capacity:
                self._counts[self._own] -= num_choices
                raise OverloadedError(
                    f"the server is full: {taken - num_choices} choices of at most {capacity} run or wait, and this "
                    f"request asks for {num_choices} more; try again later"
                )
        return HeldPlaces(self, num_choices)

    def _give_back(self, num_choices: int) -> None:
        self._counts[self._own] -= num_choices
        assert self._counts[self._own] >= 0, f"{num_choices} places were given back twice"


@final
class HeldPlaces:
    """Places of one request, given back once however often that is asked for."""

    __slots__ = ("_all", "_num_left")

    def __init__(self, places: Places, num_choices: int) -> None:
        self._all = places
        self._num_left = num_choices

    def release(self, num_choices: int | None = None) -> None:
        """Gives so many places back, all that are left by default."""
        count = self._num_left if num_choices is None else min(num_choices, self._num_left)
        self._num_left -= count
        if count:
            self._all._give_back(count)
