"""Decision traces: what is recorded makes the same decisions again, and a change of either side is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokenloom.clock import VirtualClock
from tokenloom.compose import compose_config
from tokenloom.engine import Engine
from tokenloom.engine_builder import build_engine
from tokenloom.errors import ConfigError
from tokenloom.request import Request
from tokenloom.sampling_params import SamplingParams
from tokenloom.simulation.trace_compare import compare_traces
from tokenloom.simulation.trace_replay import replay_trace
from tokenloom.tracing.trace_file import TraceFile

SMALL = (
    "executor=simulated",
    "cache.num_blocks=12",
    "cache.block_size=4",
    "model.max_model_len=40",
    "scheduler.max_num_batched_tokens=12",
)
PLUGINS = {
    "fcfs, hash": ("cache.eviction=lfu",),
    "sjf, radix, ttl": ("scheduler=sjf", "cache=radix", "cache.eviction=priority_ttl"),
    "swap": ("scheduler=priority", "scheduler.preempt_mode=swap", "executor.swap_loss=0.4"),
    "cheaper": ("scheduler=deadline", "scheduler.preempt_mode=cheaper", "cache=radix", "cache.eviction=slru"),
    "partial": ("scheduler=fair_share", "scheduler.partial_preemption=true"),
    "drafts": ("spec_decode=ngram", "scheduler=slo_adaptive", "executor.acceptance=[0.7]"),
    "baselines": ("scheduler=static_batch", "cache=none"),
}


def record(path: Path, *overrides: str) -> Engine:
    """Runs some requests under pressure, with an abort and a cut, and writes a trace."""
    clock = VirtualClock()
    config = compose_config([*SMALL, *overrides, f"trace.file={path}"]).engine
    engine = build_engine(config, clock=clock)
    for number in range(8):
        engine.add_request(make_request(number, clock.now()))
        engine.step()
        if number == 4:
            engine.abort("r1")
    num_steps = 0
    while engine.has_work():
        for output in engine.step():
            if output.request_id == "r6" and output.finish_reason is None:
                engine.truncate("r6", 1, "stop")
        num_steps += 1
        assert num_steps < 500
    engine.close()
    return engine


def make_request(number: int, now_s: float) -> Request:
    prompt = [*range(5), *range(100 * number + 10, 100 * number + 13 + number)]
    return Request(
        f"r{number}",
        prompt,
        SamplingParams(max_tokens=14, temperature=0.5, ignore_eos=True),
        seed=number,
        max_total_tokens=min(40, len(prompt) + 14),
        arrival_time_s=now_s,
        priority=number % 3,
        tenant="ab"[number % 2],
        retention_ttl_s=0.02 if number % 3 else None,
        retention_priority=number % 4,
    )


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewrite(path: Path, change: Callable[[dict[str, Any]], None], event: str, place: int = 3) -> TraceFile:
    """Changes the place-th record of a kind."""
    lines = lines_of(path)
    change([line for line in lines if line.get("event") == event][place])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TraceFile.open(path)


@pytest.mark.parametrize("plugins", PLUGINS)
def test_replay_makes_every_plan_again(plugins: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    engine = record(path, *PLUGINS[plugins])
    found = replay_trace(TraceFile.open(path))
    assert found.divergence is None
    assert found.num_equal == engine.stats.num_steps > 10
    if plugins in ("swap", "cheaper", "partial"):
        assert engine.stats.num_preemptions > 0, "no pressure, nothing shown"


def test_trace_holds_config_seed_arrivals_ends_plans_and_results(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    engine = record(path, "engine.seed=7", "scheduler.preempt_mode=swap")
    header, *records = lines_of(path)
    assert (header["format"], header["version"], header["seed"]) == ("tokenloom.trace", 1, 7)
    assert header["config"]["scheduler"]["victim"]["name"] == "last_in"
    assert "trace" not in header["config"]
    by_event: dict[str, list[dict[str, Any]]] = {}
    for line in records:
        by_event.setdefault(line["event"], []).append(line)
    assert [line["id"] for line in by_event["arrive"]] == [f"r{number}" for number in range(8)]
    assert by_event["arrive"][0]["prompt"] == [0, 1, 2, 3, 4, 10, 11, 12]
    ended = {line["request"]: (line["reason"], line["num_output_tokens"]) for line in by_event["end"]}
    assert ended.keys() == {"r1", "r6"}
    assert ended["r6"] == ("stop", 1)
    assert len(by_event["plan"]) == len(by_event["result"]) == engine.stats.num_steps
    assert sum(len(line["preempted"]) for line in by_event["plan"]) == engine.stats.num_preemptions
    tokens = sum(len(row["token_ids"]) for line in by_event["result"] for row in line["rows"])
    assert tokens >= engine.stats.num_output_tokens


def test_without_a_file_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.engine_builder.DecisionTap", None)
    config = compose_config(SMALL).engine
    clock = VirtualClock()
    engine = build_engine(config, clock=clock)
    engine.add_request(make_request(0, 0.0))
    engine.step()
    engine.close()
    assert list(tmp_path.iterdir()) == []


def test_replay_names_step_and_request_of_the_first_other_plan(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record(path)

    def change(plan: dict[str, Any]) -> None:
        plan["rows"][-1]["tokens"] += 1

    found = replay_trace(rewrite(path, change, "plan", place=5)).divergence
    assert found is not None
    assert (found.step, found.what) == (5, "plan")
    assert found.first is not None
    assert found.second is not None
    assert found.request == found.first["rows"][-1]["request"]
    assert found.first["rows"][-1]["tokens"] == found.second["rows"][-1]["tokens"] + 1
    assert "tokens is" in found.detail


def test_replay_with_other_settings_parts_from_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record(path)
    lines = lines_of(path)
    lines[0]["config"]["scheduler"]["max_num_batched_tokens"] = 5
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = replay_trace(TraceFile.open(path))
    assert found.num_equal == 0
    assert found.divergence is not None
    assert found.divergence.request == "r0"


def test_replay_of_a_run_that_stopped_in_mid_step(tmp_path: Path) -> None:
    """The plan whose result never came is compared, a line that was cut off is not."""
    path = tmp_path / "trace.jsonl"
    record(path)
    text = path.read_text()
    end = text.index('{"event":"result","step":9')
    path.write_text(text[: end + 30])
    found = replay_trace(TraceFile.open(path))
    assert (found.num_equal, found.divergence) == (10, None)


def test_compare_of_equal_runs_finds_nothing(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    engine = record(first)
    record(second)
    found = compare_traces(TraceFile.open(first), TraceFile.open(second))
    assert found.divergence is None
    assert found.counts[0] == found.counts[1]
    assert found.counts[0]["steps"] == engine.stats.num_steps
    assert found.counts[0]["scheduled tokens"] == engine.stats.num_computed_tokens
    assert (found.counts[0]["requests"], found.counts[0]["ended by abort"]) == (8, 1)


def test_compare_names_the_first_difference_and_counts_both(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    record(first)
    record(second, "scheduler.max_num_batched_tokens=5")
    found = compare_traces(TraceFile.open(first), TraceFile.open(second))
    assert found.divergence is not None
    assert (found.divergence.step, found.divergence.request) == (0, "r0")
    assert found.counts[0]["steps"] != found.counts[1]["steps"]


@pytest.mark.parametrize(
    ("event", "key", "value"),
    [
        ("arrive", "priority", 9),
        ("end", "num_output_tokens", 5),
        ("result", "lost", ["r0"]),
        ("plan", "removed", ["x"]),
    ],
)
def test_compare_looks_at_every_kind_of_record(event: str, key: str, value: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    record(first)
    record(second)
    changed = rewrite(second, lambda line: line.update({key: value}), event, place=1)
    found = compare_traces(TraceFile.open(first), changed).divergence
    assert found is not None
    assert found.what == event
    assert key in found.detail


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON object"),
        ("[1]\n", "no JSON object but a list"),
        ("{}\n", "no decision trace"),
        ('{"format":"tokenloom.trace","version":2}\n', "version 2"),
    ],
)
def test_what_is_no_trace_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        TraceFile.open(path)


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="it exists"):
        record(path)
    with pytest.raises(ConfigError, match="folder does not exist"):
        record(tmp_path / "nowhere" / "trace.jsonl")
    assert path.read_text() == "precious"
