"""Metrics as text in Prometheus' format, from snapshots; the library prometheus_client writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Family,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tokenloom.observability.metric_store import Snapshot
from tokenloom.observability.metric_table import METRICS, PREFIX, VLLM_PREFIX, Metric

__all__ = ["METRICS_CONTENT_TYPE", "MetricLabels", "render_metrics"]

METRICS_CONTENT_TYPE = CONTENT_TYPE_LATEST
"""HTTP content type of what `render_metrics` returns."""


@dataclass(frozen=True, slots=True)
class MetricLabels:
    """What all metrics of a server bear.

    Attributes:
        model_name: as clients call the model; "" takes what the engine says once there is one.
        engine: number of the engine.
        has_vllm_names: whether metrics that vLLM has appear under its names, too.
    """

    model_name: str
    engine: str = "0"
    has_vllm_names: bool = False


def render_metrics(snapshot: Snapshot, labels: MetricLabels) -> str:
    """Writes a snapshot down, in the order of `METRICS`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot, labels))
    return generate_latest(registry).decode()


@final
class _SnapshotCollector(Collector):
    def __init__(self, snapshot: Snapshot, labels: MetricLabels) -> None:
        self._snapshot = snapshot
        self._labels = labels

    def collect(self) -> Iterator[Family]:
        for name, metric in METRICS.items():
            children = self._snapshot.get(name)
            if not children:
                continue
            yield self._family(f"{PREFIX}{name}", metric, children)
            if metric.is_in_vllm and self._labels.has_vllm_names:
                yield self._family(f"{VLLM_PREFIX}{name}", metric, children)

    def _family(self, name: str, metric: Metric, children: Iterable[Any]) -> Family:
        common = {"model_name": self._labels.model_name}
        if not metric.of_http:
            common["engine"] = self._labels.engine
        names, values = [*common, *metric.labels], list(common.values())
        if metric.kind == "histogram":
            histogram = HistogramMetricFamily(name, metric.meaning, labels=names)
            for labels, total, counts in children:
                bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
                buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
                histogram.add_metric([*values, *labels], buckets, total)
            return histogram
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(name, metric.meaning, labels=names)
        for labels, value, _ in children:
            family.add_metric([*values, *labels], value)
        return family
