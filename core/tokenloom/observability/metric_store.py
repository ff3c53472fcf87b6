"""Values of metrics in one process, kept as plain numbers; a snapshot of them can cross to another process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from tokenloom.observability.metric_table import METRICS

__all__ = ["HistogramValue", "MetricStore", "Snapshot", "merge_snapshots"]

Snapshot = Mapping[str, Sequence[Sequence[Any]]]
"""Metric name -> [label values, value, bucket counts] of each child: plain data, fit for JSON and msgpack.

The value of a histogram is its sum; the counts are of the single buckets, the last one without an upper bound. Those of
another metric are empty.
"""


@final
class HistogramValue:
    """One histogram. `prometheus_client`'s own takes a lock and walks its buckets, which a step cannot afford."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value; it belongs to the first bucket whose upper bound is not below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def plain(self) -> tuple[float, list[int]]:
        """(sum, counts of the single buckets)."""
        return self._sum, list(self._counts)


@final
class MetricStore:
    """Counters, gauges and histograms of `METRICS`, by name and label values. Used from one thread."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[str, dict[tuple[str, ...], HistogramValue]] = {}

    def start(self, names: Iterable[str]) -> None:
        """Makes metrics appear with their initial label values, at 0."""
        for name in names:
            for labels in METRICS[name].initial:
                if METRICS[name].kind == "histogram":
                    self.histogram(name, *labels)
                else:
                    self.add(name, 0, *labels)

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Adds to a counter or gauge."""
        values = self._children(name, labels)
        values[labels] = values.get(labels, 0) + amount

    def set(self, name: str, value: float, *labels: str) -> None:
        """Sets a gauge, or a counter that is counted elsewhere."""
        self._children(name, labels)[labels] = value

    def histogram(self, name: str, *labels: str) -> HistogramValue:
        """A histogram to observe values with; the same object for the same labels."""
        metric = METRICS[name]
        assert metric.kind == "histogram", f"{name} is a {metric.kind}"
        assert len(labels) == len(metric.labels), f"{name} has labels {metric.labels}, got {labels}"
        children = self._histograms.setdefault(name, {})
        value = children.get(labels)
        if value is None:
            value = children[labels] = HistogramValue(metric.buckets)
        return value

    def snapshot(self) -> Snapshot:
        """All values as they are now."""
        numbers = {
            name: [[list(labels), value, []] for labels, value in children.items()]
            for name, children in self._numbers.items()
        }
        histograms = {
            name: [[list(labels), *value.plain()] for labels, value in children.items()]
            for name, children in self._histograms.items()
        }
        return {**numbers, **histograms}

    def _children(self, name: str, labels: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        metric = METRICS[name]
        assert metric.kind != "histogram", f"{name} is a histogram"
        assert len(labels) == len(metric.labels), f"{name} has labels {metric.labels}, got {labels}"
        return self._numbers.setdefault(name, {})


def merge_snapshots(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Adds up what several processes counted. Gauges are added, too: no two processes hold the same thing."""
    merged: dict[str, dict[tuple[str, ...], tuple[float, list[int]]]] = {}
    for snapshot in snapshots:
        for name, children in snapshot.items():
            known = merged.setdefault(name, {})
            for labels, value, counts in children:
                total, sums = known.get(tuple(labels), (0.0, [0] * len(counts)))
                known[tuple(labels)] = (total + value, [a + b for a, b in zip(sums, counts, strict=True)])
    return {
        name: [[list(labels), value, counts] for labels, (value, counts) in children.items()]
        for name, children in merged.items()
    }
