"""Two servers under the same load, in turn: ratios of their figures, pair by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = ["COMPARED", "Ratio", "ratios"]

COMPARED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "output tokens/s": ("higher", ("output_tok_s",)),
    "requests/s": ("higher", ("completed_rps",)),
    "goodput requests/s": ("higher", ("slo", "goodput_rps")),
    "TTFT p50": ("lower", ("latency", "ttft_s", "p50")),
    "TTFT p99": ("lower", ("latency", "ttft_s", "p99")),
    "TPOT p50": ("lower", ("latency", "tpot_s", "p50")),
    "TPOT p99": ("lower", ("latency", "tpot_s", "p99")),
    "ITL p99": ("lower", ("latency", "itl_s", "p99")),
    "E2E p50": ("lower", ("latency", "e2e_s", "p50")),
    "E2E p99": ("lower", ("latency", "e2e_s", "p99")),
}
"""Figures that are compared: whether higher or lower is better, and where they stand in a result."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure of A divided by the same one of B, over pairs of runs.

    Attributes:
        figure: its name in `COMPARED`.
        better: whether a "higher" or "lower" figure is better.
        a, b: medians of the figure over the runs of each; None if none has it.
        values: of each pair that has both, in order.
    """

    figure: str
    better: str
    a: float | None
    b: float | None
    values: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the spread."""
        has_values = bool(self.values)
        return {
            "better": self.better,
            "a": self.a,
            "b": self.b,
            "min": min(self.values) if has_values else None,
            "median": median(self.values) if has_values else None,
            "max": max(self.values) if has_values else None,
            "pairs": list(self.values),
        }


def ratios(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Ratio]:
    """Ratios A / B of every compared figure.

    Args:
        pairs: results of A and B, each pair measured one after the other.
    """
    found: list[Ratio] = []
    for figure, (better, path) in COMPARED.items():
        values = [(_figure(a, path), _figure(b, path)) for a, b in pairs]
        both = [(a, b) for a, b in values if a is not None and b]
        of_a, of_b = [a for a, _ in values if a is not None], [b for _, b in values if b is not None]
        found.append(
            Ratio(
                figure,
                better,
                median(of_a) if of_a else None,
                median(of_b) if of_b else None,
                tuple(a / b for a, b in both),
            )
        )
    return found


def _figure(result: Mapping[str, Any], path: Sequence[str]) -> float | None:
    value: Any = result
    for name in path:
        value = value[name]
    return None if value is None else float(value)
