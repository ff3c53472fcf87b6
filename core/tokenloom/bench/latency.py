"""Percentiles of TTFT, TPOT and ITL over the requests of a run. Definitions stand in `RequestMetrics`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from tokenloom.results import RequestMetrics

__all__ = ["PERCENTILES", "latency_summary", "percentiles"]

PERCENTILES = (50, 90, 95, 99)


def percentiles(values: Sequence[float]) -> dict[str, float | int | None]:
    """Mean, percentiles (linear interpolation) and largest of values, with their count; None where there are none."""
    if not values:
        return {"count": 0, "mean": None, **{f"p{p}": None for p in PERCENTILES}, "max": None}
    found = np.percentile(np.asarray(values), PERCENTILES)
    return {
        "count": len(values),
        "mean": float(np.mean(values)),
        **{f"p{p}": float(value) for p, value in zip(PERCENTILES, found, strict=True)},
        "max": float(max(values)),
    }


def latency_summary(metrics: Iterable[RequestMetrics]) -> dict[str, dict[str, float | int | None]]:
    """Percentiles of ttft_s, tpot_s, e2e_s over requests, and of itl_s over gaps between chunks of tokens."""
    rows = list(metrics)
    gaps = [later - earlier for row in rows for earlier, later in pairwise(row.token_times_s)]
    chunks = [count for row in rows for count in row.tokens_per_chunk]
    return {
        "ttft_s": percentiles([row.ttft_s for row in rows if row.ttft_s is not None]),
        "tpot_s": percentiles([row.tpot_s for row in rows if row.tpot_s is not None]),
        "itl_s": percentiles(gaps),
        "e2e_s": percentiles([row.e2e_s for row in rows if row.e2e_s is not None]),
        "tokens_per_chunk": percentiles([float(count) for count in chunks]),
    }
