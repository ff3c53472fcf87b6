"""Reads what Prometheus would read."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["sample", "samples_of"]

Labels = frozenset[tuple[str, str]]


def samples_of(text: str) -> dict[tuple[str, Labels], float]:
    """(name, labels but for model_name and engine) -> value, of all samples; the text must be well-formed."""
    found: dict[tuple[str, Labels], float] = {}
    for family in text_string_to_metric_families(text):
        for entry in family.samples:
            own = {name: value for name, value in entry.labels.items() if name not in ("model_name", "engine")}
            key = (entry.name, frozenset(own.items()))
            assert key not in found, f"{key} appears twice"
            found[key] = entry.value
    return found


def sample(text: str, name: str, **labels: str) -> float:
    """One value; the name without `tokenloom:`."""
    return samples_of(text)[f"tokenloom:{name}", frozenset(labels.items())]
