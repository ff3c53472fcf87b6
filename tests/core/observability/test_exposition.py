"""Snapshots, their sum, and the text that Prometheus reads."""

from __future__ import annotations

import json

import msgspec
import pytest
from prometheus_client import Histogram
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from tests.core.observability.samples import sample, samples_of
from tokenloom.observability.exposition import MetricLabels, render_metrics
from tokenloom.observability.metric_store import MetricStore, merge_snapshots
from tokenloom.observability.metric_table import METRICS

LABELS = MetricLabels("tiny")


def full_store() -> MetricStore:
    """Every metric of the table with a value."""
    store = MetricStore()
    for name, metric in METRICS.items():
        labels = ["x"] * len(metric.labels)
        if metric.kind == "histogram":
            store.histogram(name, *labels).observe(0.02)
        else:
            store.add(name, 3, *labels)
    return store


def test_every_metric_of_the_table_parses_under_its_name_and_kind() -> None:
    families = {
        family.name: family
        for family in text_string_to_metric_families(render_metrics(full_store().snapshot(), LABELS))
    }
    assert set(families) == {f"tokenloom:{name}" for name in METRICS}
    for name, metric in METRICS.items():
        family = families[f"tokenloom:{name}"]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
        expected = {"model_name", *metric.labels, *(() if metric.of_http else ("engine",))}
        assert {label for entry in family.samples for label in entry.labels} - {"le"} == expected


def test_counters_end_in_total_and_histograms_have_buckets_sum_and_count() -> None:
    text = render_metrics(full_store().snapshot(), LABELS)
    assert sample(text, "prompt_tokens_total") == 3
    assert sample(text, "iteration_tokens_total_bucket", le="1.0") == 1
    assert sample(text, "iteration_tokens_total_sum") == 0.02
    assert sample(text, "iteration_tokens_total_count") == 1


@pytest.mark.parametrize("value", [0.0, 0.01, 0.0100001, 0.05, 80.0, 81.0, 1e9])
def test_histogram_counts_as_the_library_does(value: float) -> None:
    store, registry = MetricStore(), CollectorRegistry()
    name = "inter_token_latency_seconds"
    theirs = Histogram("theirs", "x", buckets=METRICS[name].buckets, registry=registry)
    store.histogram(name).observe(value)
    theirs.observe(value)
    ours = samples_of(render_metrics(store.snapshot(), LABELS))
    expected = {
        (entry.name.replace("theirs", f"tokenloom:{name}"), frozenset(entry.labels.items())): entry.value
        for family in registry.collect()
        for entry in family.samples
        if not entry.name.endswith("_created")
    }
    assert ours == expected


def test_vllm_names_appear_only_when_asked_for() -> None:
    snapshot = full_store().snapshot()
    assert "vllm:" not in render_metrics(snapshot, LABELS)
    found = samples_of(render_metrics(snapshot, MetricLabels("tiny", has_vllm_names=True)))
    aliases = {key for key in found if key[0].startswith("vllm:")}
    assert {found[key] for key in aliases} == {found[f"tokenloom:{name[5:]}", labels] for name, labels in aliases}
    for name in ("num_requests_waiting", "kv_cache_usage_perc", "e2e_request_latency_seconds_count"):
        assert (f"vllm:{name}", frozenset()) in aliases
    assert not [name for name, _ in aliases if "step_" in name or "slo" in name or "http" in name]


def test_label_values_are_quoted() -> None:
    labels = MetricLabels('a "model"\nwith \\ marks')
    store = MetricStore()
    store.add("http_requests", 1, "/v1/x", "200")
    (family,) = text_string_to_metric_families(render_metrics(store.snapshot(), labels))
    assert family.samples[0].labels == {"model_name": labels.model_name, "route": "/v1/x", "status": "200"}


def test_merged_snapshots_are_the_sum_also_behind_a_wire() -> None:
    snapshot = full_store().snapshot()
    other = MetricStore()
    other.add("http_requests", 2, "x", "x")
    other.add("http_requests", 1, "/new", "404")
    wired = [json.loads(json.dumps(snapshot)), msgspec.msgpack.decode(msgspec.msgpack.encode(other.snapshot()))]
    text = render_metrics(merge_snapshots([snapshot, *wired]), LABELS)
    assert sample(text, "http_requests_total", route="x", status="x") == 3 + 3 + 2
    assert sample(text, "http_requests_total", route="/new", status="404") == 1
    assert sample(text, "iteration_tokens_total_count") == 2


def test_a_wrong_label_count_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="labels"):
        MetricStore().add("http_requests", 1, "/v1/x")
    with pytest.raises(AssertionError, match="histogram"):
        MetricStore().add("step_time_seconds", 1)
