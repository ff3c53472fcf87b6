"""Result files and plots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.core.load_generator.records import made
from tokenloom.load_generator.comparison import Ratio
from tokenloom.load_generator.figures import Window, summarize
from tokenloom.load_generator.load_request import Outcome, RequestRecord
from tokenloom.load_generator.measure import Measured
from tokenloom.load_generator.plots import draw_load, draw_ratios, draw_sweep
from tokenloom.load_generator.result_file import record_to_dict, write_results
from tokenloom.simulation.measurements import SloTargets

RECORDS = [
    made(0, 0.0, [1.0, 1.25, 2.0], chunk_tokens=[1, 2, 1], sent_s=0.5, num_prompt_tokens=7, finish_reason="length"),
    made(1, 1.0, [1.1, 1.2]),
    made(2, 1.5, [], outcome=Outcome.FAILED, failure="timeout", message="too slow"),
]


def measured(records: list[RequestRecord]) -> Measured:
    return Measured(summarize(records, Window(0.5, 2.0), SloTargets(2.0, 0.1)), records, was_interrupted=False)


def test_a_record_keeps_every_time_in_few_characters() -> None:
    assert record_to_dict(RECORDS[0]) == {
        "number": 0,
        "outcome": "completed",
        "scheduled_s": 0.0,
        "sent_s": 0.5,
        "end_s": 2.0,
        "prompt_tokens": 7,
        "max_tokens": 4,
        "output_tokens": 4,
        "finish_reason": "length",
        "chunk_tokens": [1, 2, 1],
        "chunks_us": [500_000, 250_000, 750_000],
    }
    assert "chunk_tokens" not in record_to_dict(RECORDS[1])
    assert (record_to_dict(RECORDS[2])["failure"], record_to_dict(RECORDS[2])["chunks_us"]) == ("timeout", [])


def test_gaps_do_not_drift() -> None:
    times = [0.0000014 * number for number in range(1, 1001)]
    assert sum(record_to_dict(made(0, 0.0, times))["chunks_us"]) == 1400


def test_one_result_is_an_object_and_several_are_one_by_name(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    figures: dict[str, Any] = {"output_tok_s": 5.0, "nested": {"a": [1, 2]}}
    write_results(path, {"only": (figures, RECORDS)})
    found = json.loads(path.read_text())
    assert found == {**figures, "requests": [record_to_dict(record) for record in RECORDS]}
    write_results(path, {"rate=1": (figures, RECORDS), 'rate="2"': (figures, [])})
    found = json.loads(path.read_text())
    assert [len(part["requests"]) for part in found.values()] == [3, 0]
    assert list(found) == ["rate=1", 'rate="2"']


@pytest.mark.parametrize(
    ("suffix", "records"), [("png", RECORDS), ("svg", RECORDS[2:])], ids=["some", "none completed"]
)
def test_a_run_is_drawn(tmp_path: Path, suffix: str, records: list[RequestRecord]) -> None:
    path = tmp_path / f"plot.{suffix}"
    draw_load(measured(records), path)
    assert path.stat().st_size > 5_000


def test_a_sweep_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    draw_sweep("rate", {2.0: measured(RECORDS).result, 1.0: measured(RECORDS[2:]).result}, path)
    assert path.stat().st_size > 5_000


def test_ratios_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    draw_ratios([Ratio("TTFT p50", "lower", 1.0, 2.0, (0.5, 0.7)), Ratio("x", "higher", None, None, ())], path)
    assert path.stat().st_size > 5_000
