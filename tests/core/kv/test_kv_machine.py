"""KVManager against a dict model: random requests admit, grow, publish, slide, release, preempt and reset."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.kv.modelled_kv import ModelledKV
from tokenloom.testing.cache_driver import LAYOUTS

PICK = st.integers(0, 4)


class KVMachine(RuleBasedStateMachine):
    """Short histories, shrunk to the shortest when one fails."""

    @initialize(layout=st.sampled_from(sorted(LAYOUTS)))
    def build(self, layout: str) -> None:
        self.both = ModelledKV(layout)

    @precondition(lambda self: len(self.both.live) < 5)
    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9), salt=st.sampled_from(["", "", "s"]))
    def arrive(self, tokens: list[int], salt: str) -> None:
        self.both.arrive(tokens, salt)
        self.both.admit(-1)

    @precondition(lambda self: self.both.choose(0, is_running=False))
    @rule(pick=PICK)
    def admit(self, pick: int) -> None:
        self.both.admit(pick)

    @precondition(lambda self: self.both.choose(0, is_running=True))
    @rule(pick=PICK, count=st.integers(1, 9), num_drafts=st.integers(0, 3), token=st.integers(0, 1))
    def compute(self, pick: int, count: int, num_drafts: int, token: int) -> None:
        self.both.compute(pick, count, num_drafts, token)

    @precondition(lambda self: self.both.choose(0, is_running=True))
    @rule(pick=PICK, is_final=st.booleans())
    def let_go(self, pick: int, is_final: bool) -> None:
        self.both.let_go(pick, is_final)

    @precondition(lambda self: self.both.choose(0, is_running=False))
    @rule(pick=PICK)
    def abort_waiting(self, pick: int) -> None:
        self.both.abort_waiting(pick)

    @precondition(lambda self: self.both.kv.usage()["cached"])
    @rule()
    def reset(self) -> None:
        self.both.reset()

    @invariant()
    def agrees(self) -> None:
        self.both.check()


TestKVMachine = KVMachine.TestCase
TestKVMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_long_random_walk_agrees_with_the_model(layout: str, seed: int) -> None:
    """Histories long enough to fill the pool, evict, hit what is left and slide windows."""
    rng = random.Random(f"{layout} {seed}")
    both = ModelledKV(layout)
    for _ in range(800):
        action = rng.random()
        if action < 0.15 and len(both.live) < 5:
            both.arrive(rng.choices([0, 1], [3, 1], k=rng.randrange(1, 10)), rng.choice(["", "", "", "s"]))
        elif action < 0.35:
            both.admit(rng.randrange(5))
        elif action < 0.85:
            both.compute(rng.randrange(5), rng.randrange(1, 6), rng.randrange(4), rng.choices([0, 1], [3, 1])[0])
        elif action < 0.98:
            both.let_go(rng.randrange(5), is_final=rng.random() < 0.5)
        elif action < 0.99:
            both.abort_waiting(rng.randrange(5))
        else:
            both.reset()
        both.check()
    assert both.num_hits > 5
    assert both.num_evicted > 5
    assert (both.num_slid > 0) == any(group.window is not None for group in both.groups)
