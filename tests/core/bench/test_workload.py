"""Workload files and percentiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tokenloom.bench.latency import latency_summary, percentiles
from tokenloom.bench.workload import read_workload
from tokenloom.errors import ConfigError
from tokenloom.results import RequestMetrics


def test_workload_is_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "work.json"
    path.write_text('[{"prompt": [1, 2], "max_tokens": 3}, {"prompt": [4], "max_tokens": 1}]')
    items = read_workload(path)
    assert [(item.prompt, item.max_tokens) for item in items] == [([1, 2], 3), ([4], 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is not JSON"),
        ("{}", "expected a list of"),
        ("[]", "has no requests"),
        ('[{"prompt": [], "max_tokens": 1}]', r"0\.prompt"),
        ('[{"prompt": [1], "max_tokens": 0}]', r"0\.max_tokens"),
        ('[{"prompt": [1], "max_tokens": 1}, {"prompt": [-1], "max_tokens": 1}]', r"1\.prompt\.0"),
        ('[{"prompt": ["a"], "max_tokens": 1}]', r"0\.prompt\.0"),
        ('[{"prompt": [1], "max_tokens": 1, "extra": 2}]', r"0\.extra"),
        ('[{"prompt": [1], "max_tokens": true}]', r"0\.max_tokens"),
    ],
)
def test_bad_workloads_name_file_and_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "work.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_workload(path)
    assert str(path) in str(caught.value)


def test_missing_workload_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_workload(tmp_path / "none.json")


def test_percentiles_interpolate_linearly() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    found = percentiles(values)
    assert found["count"] == 4
    assert found["mean"] == 2.5
    assert found["p50"] == 2.5
    assert found["p99"] == pytest.approx(float(np.percentile(values, 99)))
    assert found["max"] == 4.0


def test_percentiles_of_nothing_are_none() -> None:
    assert percentiles([]) == {
        "count": 0,
        "mean": None,
        "p50": None,
        "p90": None,
        "p95": None,
        "p99": None,
        "max": None,
    }


def test_inter_token_latency_counts_gaps_between_chunks() -> None:
    metrics = RequestMetrics(0.5, 0.1, 1.0, 0.0, token_times_s=(0.5, 0.7, 1.0), tokens_per_chunk=(1, 2, 3))
    summary = latency_summary([metrics, RequestMetrics(None, None, None, None)])
    assert summary["ttft_s"]["count"] == 1
    assert summary["itl_s"]["count"] == 2
    assert summary["itl_s"]["mean"] == pytest.approx(0.25)
    assert summary["tokens_per_chunk"]["mean"] == 2.0
