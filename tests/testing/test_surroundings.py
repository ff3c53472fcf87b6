"""What the kit holds still around a plugin, and what it watches there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tokenloom.testing.surroundings import clock_at, generators_untouched


def test_clocks_stand_still_and_go_on() -> None:
    before = time.monotonic()
    with clock_at(12.5):
        clocks = (time.time(), time.monotonic(), time.perf_counter(), time.process_time())
        assert clocks == (12.5,) * 4
        assert time.time_ns() == time.perf_counter_ns() == 12_500_000_000
    assert time.monotonic() >= before
    assert time.time() > 1e9


@pytest.mark.parametrize(
    ("change", "whose"),
    [
        (random.random, "the module random"),
        (lambda: random.seed(0), "the module random"),
        (lambda: np.random.rand(), "numpy"),
        (lambda: torch.rand(1), "torch"),
        (lambda: torch.manual_seed(0), "torch"),
    ],
    ids=["random", "seed", "numpy", "torch", "manual_seed"],
)
def test_a_changed_generator_is_named_and_put_back(change: Callable[[], object], whose: str) -> None:
    torch.manual_seed(0)
    state, of_torch = random.getstate(), torch.get_rng_state()
    with pytest.raises(AssertionError, match=f"the call drew .* {whose}"), generators_untouched("the call"):
        change()
    assert random.getstate() == state
    assert torch.equal(torch.get_rng_state(), of_torch)


def test_generators_of_its_own_are_no_business_of_the_kit() -> None:
    with generators_untouched("the call"):
        torch.rand(1, generator=torch.Generator().manual_seed(1))
        random.Random(1).random()
        np.random.default_rng(1).random()
