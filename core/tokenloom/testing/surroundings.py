"""What of the process around a plugin must not show in its answers, and must not be changed by it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import torch

__all__ = ["CLOCKS", "clock_at", "generators_untouched"]

CLOCKS = (0.0, 1.0, 1_234.5, 1e9 + 7.25)
"""Times to try, seconds: they differ in their parity, in fractions and in size."""

_UNUSUAL = 918_273_645


@contextmanager
def clock_at(now_s: float) -> Iterator[None]:
    """All clocks of the module `time` stand at `now_s`; one that was imported by its name goes on."""
    with ExitStack() as patches:
        for name in ("time", "monotonic", "perf_counter", "process_time"):
            patches.enter_context(mock.patch.object(time, name, return_value=now_s))
            patches.enter_context(mock.patch.object(time, f"{name}_ns", return_value=int(now_s * 1e9)))
        yield


@contextmanager
def generators_untouched(call: str) -> Iterator[None]:
    """Asserts that the generators of the whole process are afterwards as they were; puts them back if not."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    # A state that nobody else comes to, so that seeding with a usual number is seen as well.
    random.seed(_UNUSUAL)
    np.random.seed(_UNUSUAL)
    torch.manual_seed(_UNUSUAL)
    state, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
        assert random.getstate() == state, f"{call} drew from or seeded the generator of the module random"
        is_same = all(np.array_equal(one, other) for one, other in zip(of_numpy, np.random.get_state(), strict=True))
        assert is_same, f"{call} drew from or seeded numpy's global generator"
        assert torch.equal(torch.get_rng_state(), of_torch), f"{call} drew from or seeded torch's global generator"
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])
