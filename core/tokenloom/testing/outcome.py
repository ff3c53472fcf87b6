"""What a run of one suite has to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["Failure", "Progress", "SuiteOutcome"]

Progress = Callable[[str, int, int], None]
"""(plugin, tests done, tests in all)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed: its name with parameters, what its docstring says, and the message."""

    test: str
    meaning: str
    message: str


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """Counts, reasons and failures of one run.

    Attributes:
        num_passed: tests that passed.
        skipped: reason -> number of tests skipped for it.
        failures: tests that failed.
    """

    num_passed: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
