"""Random histories of requests over a prefix cache, shrunk to the shortest when one fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tokenloom.testing.cache_driver import LAYOUTS, CacheDriver

__all__ = ["CacheMachine", "machine_for", "walk"]

_MOST_LIVE = 5
_PICK = st.integers(0, _MOST_LIVE - 1)


class CacheMachine(RuleBasedStateMachine):
    """The operations of `CacheDriver`, in any order."""

    make_driver: ClassVar[Callable[[str], CacheDriver]]
    driver: CacheDriver

    @initialize(layout=st.sampled_from(list(LAYOUTS)))
    def build(self, layout: str) -> None:
        self.driver = type(self).make_driver(layout)

    @precondition(lambda self: _num_live(self.driver) < _MOST_LIVE)
    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9), salt=st.sampled_from(["", "", "s"]))
    def arrive(self, tokens: list[int], salt: str) -> None:
        self.driver.arrive(tokens, salt)
        self.driver.admit()

    @precondition(lambda self: self.driver.count(is_running=False) > 0)
    @rule(pick=_PICK)
    def admit(self, pick: int) -> None:
        self.driver.admit(pick)

    @precondition(lambda self: self.driver.count(is_running=True) > 0)
    @rule(pick=_PICK, count=st.integers(1, 9), num_drafts=st.integers(0, 3), token=st.integers(0, 1))
    def compute(self, pick: int, count: int, num_drafts: int, token: int) -> None:
        self.driver.compute(pick, count, num_drafts, token)

    @precondition(lambda self: self.driver.count(is_running=True) > 0)
    @rule(pick=_PICK, is_final=st.booleans())
    def let_go(self, pick: int, is_final: bool) -> None:
        self.driver.let_go(pick, is_final=is_final)

    @precondition(lambda self: self.driver.count(is_running=False) > 0)
    @rule(pick=_PICK)
    def abort_waiting(self, pick: int) -> None:
        self.driver.abort_waiting(pick)

    @precondition(lambda self: self.driver.kv.usage()["cached"] > 0)
    @rule()
    def reset(self) -> None:
        self.driver.reset()

    @invariant()
    def agrees(self) -> None:
        self.driver.check()


def machine_for(make_driver: Callable[[str], CacheDriver]) -> type[CacheMachine]:
    """The machine over the drivers that `make_driver(layout)` makes."""
    return type("Machine", (CacheMachine,), {"make_driver": staticmethod(make_driver)})


def walk(driver: CacheDriver, rng: random.Random, num_steps: int) -> None:
    """One long history: fills the pools, evicts, hits what is left and slides windows."""
    for _ in range(num_steps):
        action = rng.random()
        if action < 0.15 and _num_live(driver) < _MOST_LIVE:
            driver.arrive(rng.choices([0, 1], [3, 1], k=rng.randrange(1, 10)), rng.choice(["", "", "", "s"]))
        elif action < 0.35:
            driver.admit(rng.randrange(_MOST_LIVE))
        elif action < 0.85:
            driver.compute(rng.randrange(_MOST_LIVE), rng.randrange(1, 6), rng.randrange(3), rng.randrange(2))
        elif action < 0.98:
            driver.let_go(rng.randrange(_MOST_LIVE), is_final=rng.random() < 0.6)
        elif action < 0.99:
            driver.abort_waiting(rng.randrange(_MOST_LIVE))
        else:
            driver.reset()
        driver.check()


def _num_live(driver: CacheDriver) -> int:
    return driver.count(is_running=True) + driver.count(is_running=False)
