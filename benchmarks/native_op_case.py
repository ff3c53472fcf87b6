"""One native operation timed against torch's: the case, its measurement and its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

from tokenloom.ops.table import OpTable

__all__ = ["Call", "Case", "Figure", "Make", "Shapes", "measure", "random_bfloat16"]

_WORKING_SET_BYTES = 128 << 20
_MAX_COPIES = 64

Call = Callable[[], object]
Make = Callable[[str, OpTable], Call]
"""("torch" or "native", its operations) -> the call, on operands of its own."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of the model."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


@dataclass(frozen=True, slots=True)
class Case:
    """One operation on one set of operands.

    Attributes:
        name: of the operation, with its shape.
        num_bytes: that it must move.
        make: the call on new operands, for each implementation's operations.
    """

    name: str
    num_bytes: int
    make: Make


@dataclass(frozen=True, slots=True)
class Figure:
    """The outcome of one case at one number of rows; times in seconds."""

    operation: str
    rows: int
    torch_s: float
    native_s: float
    native_gb_s: float

    @property
    def ratio(self) -> float:
        """How many times faster native is."""
        return self.torch_s / self.native_s


def measure(case: Case, rows: int, rounds: int, tables: Mapping[str, OpTable]) -> Figure:
    """Times one case with both implementations, round by round."""
    copies = max(1, min(_MAX_COPIES, _WORKING_SET_BYTES // case.num_bytes))
    calls = {name: [case.make(name, ops) for _ in range(copies)] for name, ops in tables.items()}
    best = {name: [float("inf")] * copies for name in calls}
    for _ in range(rounds):
        for name, own in calls.items():
            for number, call in enumerate(own):
                started = time.perf_counter()
                call()
                best[name][number] = min(best[name][number], time.perf_counter() - started)
    torch_s, native_s = median(best["torch"]), median(best["native"])
    return Figure(case.name, rows, torch_s, native_s, case.num_bytes / native_s / 1e9)


def random_bfloat16(*shape: int) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(*shape).to(torch.bfloat16)
