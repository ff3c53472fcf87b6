"""Whether a stress run met what it is about: whatever can preempt, swap or evict did so, or it was too tame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import final

from tokenloom.plugins import default_registry
from tokenloom.testing.stress_case import Combination
from tokenloom.testing.stress_run import StressCounts

__all__ = ["Reach", "find_gaps", "reach_of"]


@final
@dataclass(frozen=True, slots=True)
class _Deed:
    """Something that cases do.

    Attributes:
        count: how often it happened.
        is_possible: whether it can with a combination of plugins, and not just by a rare chance.
        num_enough: cases of one plugin after which it must have happened: the rarer, the more.
    """

    name: str
    count: Callable[[StressCounts], int]
    is_possible: Callable[[Combination], bool]
    num_enough: int


_PREEMPTED = _Deed("preempted", lambda counts: counts.num_preemptions, lambda one: one.can_preempt, 24)
_SWAPPED = _Deed("swapped", lambda counts: counts.num_swaps, lambda one: one.can_swap, 24)
_DEEDS = (
    _PREEMPTED,
    _SWAPPED,
    _Deed("kept blocks", lambda counts: counts.num_partial, lambda one: one.can_keep_blocks, 60),
    _Deed("evicted", lambda counts: counts.num_evicted, lambda one: bool(one.eviction), 24),
    _Deed("aborted a victim", lambda counts: counts.num_aborted_preempted, lambda one: one.can_run_short, 60),
)
_KINDS = ("scheduler", "scheduler.victim", "cache", "cache.eviction")
"""Whose plugins are held to every deed."""
_ENOUGH_OF_OPTIMISTIC, _ENOUGH_OF_CAREFUL = 40, 120
"""Cases of one combination of policies after which it must have preempted and swapped: the second where admission
looks ahead, and only an estimate that was wrong or a more urgent request leads to that."""


@final
@dataclass(frozen=True, slots=True)
class Reach:
    """Of the combinations of policies that ran and can do a deed, how many did."""

    deed: str
    num_did: int
    num_can: int

    def __str__(self) -> str:
        return f"{self.num_did} of {self.num_can} {self.deed}"


def reach_of(counts: Mapping[Combination, StressCounts]) -> list[Reach]:
    """For every deed, over the combinations of scheduler, victim, admission and mode."""
    sums = [(deed, _sums(counts, deed, _policies)) for deed in _DEEDS]
    return [Reach(deed.name, sum(deed.count(total) > 0 for total in by.values()), len(by)) for deed, by in sums]


def find_gaps(counts: Mapping[Combination, StressCounts]) -> list[str]:
    """What had enough cases to do something that it can do, and never did. Only of the built-in plugins.

    Each scheduler, victim policy, cache and eviction policy is held to every deed; each combination of scheduler,
    victim, admission and mode to preempting and swapping.
    """
    own = {one: figures for one, figures in counts.items() if _is_built_in(one)}
    gaps: list[str] = []
    for deed in _DEEDS:
        gaps += _gaps(deed, _sums(own, deed, _plugins), deed.num_enough)
    for is_optimistic, num_enough in ((True, _ENOUGH_OF_OPTIMISTIC), (False, _ENOUGH_OF_CAREFUL)):
        some = {one: figures for one, figures in own.items() if (one.admission == "optimistic") == is_optimistic}
        for deed in (_PREEMPTED, _SWAPPED):
            gaps += _gaps(deed, _sums(some, deed, _policies), num_enough)
    return gaps


def _gaps(deed: _Deed, sums: Mapping[str, StressCounts], num_enough: int) -> list[str]:
    return [
        f"{name} never {deed.name} in {total.num_cases} cases in which it could have"
        for name, total in sums.items()
        if total.num_cases >= num_enough and deed.count(total) == 0
    ]


def _sums(
    counts: Mapping[Combination, StressCounts], deed: _Deed, names_of: Callable[[Combination], Iterable[str]]
) -> dict[str, StressCounts]:
    """Figures by name, of the combinations that can do the deed."""
    sums: dict[str, StressCounts] = {}
    for combination, figures in sorted(counts.items()):
        for name in names_of(combination) if deed.is_possible(combination) else ():
            sums.setdefault(name, StressCounts()).add(figures)
    return sums


def _plugins(one: Combination) -> Iterable[str]:
    return [f"{kind}={one.names[kind]}" for kind in _KINDS if kind in one.names]


def _policies(one: Combination) -> Iterable[str]:
    return [" ".join(f"{key}={name}" for key, name in one.names.items() if key.startswith("scheduler"))]


def _is_built_in(one: Combination) -> bool:
    """Of another package's policies nothing is known: one may well reserve all memory."""
    plugins = {key: name for key, name in one.names.items() if key != "scheduler.preempt_mode"}
    return all(default_registry().get(kind, name).package == "tokenloom" for kind, name in plugins.items())
