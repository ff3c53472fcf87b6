"""`tokenloom simulate` and `tokenloom simulate cache` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunCli = Callable[..., tuple[int, str, str]]
SMALL = ("workload=generated", "limit=12", "prompt_tokens=30", "output_tokens=5", "cache.num_blocks=500")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    lines: list[dict[str, Any]] = [
        {"timestamp": 3000 * (number // 3), "input_length": 40, "output_length": 3, "hash_ids": [0, 1 + number % 4]}
        for number in range(12)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def test_cache_replay_prints_and_writes_the_hit_ratio(run_cli: RunCli, trace: str, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    code, out, err = run_cli(
        "simulate",
        "cache",
        f"workload={trace}",
        "cache=hash",
        "cache.eviction=lru",
        "cache.num_blocks=100",
        "cache.block_size=512",
        f"output={target}",
    )
    assert (code, err) == (0, "")
    result = json.loads(target.read_text())
    # Of 24 references 5 are first ones.
    assert result["hit_ratio"] == pytest.approx(19 / 24)
    assert (result["num_hits"], result["num_references"], result["num_requests"]) == (19, 24, 12)
    assert result["config"]["cache"]["eviction"]["name"] == "lru"
    assert result["provenance"]["packages"]["tokenloom"]
    assert f"{19 / 24:.6f}" in out
    assert "hit_ratio" in out


def test_cache_replay_compares_configurations(run_cli: RunCli, trace: str, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    words = (f"workload={trace}", "cache=hash,none", "cache.num_blocks=3", f"output={target}")
    code, out, _ = run_cli("simulate", "cache", *words)
    assert code == 0
    results = json.loads(target.read_text())
    assert list(results) == ["cache=hash", "cache=none"]
    assert results["cache=hash"]["hit_ratio"] > results["cache=none"]["hit_ratio"] == 0.0
    assert "cache=none" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cache=hash",), "cache.num_blocks=null"),
        (("cache.num_blocks=10", "rate=2"), "rate"),
        (("cache.num_blocks=10", "limit=0"), "limit"),
    ],
)
def test_cache_replay_refuses_what_it_cannot_use(
    run_cli: RunCli, trace: str, words: tuple[str, ...], message: str
) -> None:
    code, _, err = run_cli("simulate", "cache", f"workload={trace}", *words)
    assert code == 2
    assert message in err


def test_a_simulation_prints_and_writes_its_figures(run_cli: RunCli, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    code, out, err = run_cli("simulate", *SMALL, "rate=4", f"output={target}")
    assert (code, err) == (0, "")
    for word in ("goodput", "TTFT ms", "ITL ms", "hit ratio", "preemptions", "recomputed / computed", "KV in use"):
        assert word in out
    result = json.loads(target.read_text())
    assert result["num_completed"] == 12
    assert result["config"]["executor"]["name"] == "simulated"
    assert result["provenance"]["packages"]["tokenloom"]
    assert run_cli("simulate", "run", *SMALL, "rate=4")[1] == out


def test_refusals_by_a_full_queue_are_shown(run_cli: RunCli) -> None:
    words = (*SMALL, "rate=100000", "scheduler.max_num_seqs=1", "scheduler.max_queued_requests=2")
    code, out, err = run_cli("simulate", *words)
    assert (code, err) == (0, "")
    assert "rejected (9 by a full queue), first: " in " ".join(out.split())
    rows = [line.split() for line in run_cli("simulate", *words, "scheduler=fcfs,sjf")[1].splitlines()]
    assert [row[-1] for row in rows if row and row[0] in ("scheduler=fcfs", "scheduler=sjf")][:2] == ["9", "9"]


def test_traces_are_replayed_at_another_rate(run_cli: RunCli, trace: str, tmp_path: Path) -> None:
    def offered(*words: str) -> float:
        target = tmp_path / "result.json"
        assert run_cli("simulate", f"workload={trace}", "cache.num_blocks=500", f"output={target}", *words)[0] == 0
        return float(json.loads(target.read_text())["offered_rps"])

    assert 0.9 < offered() < 1.3
    assert offered("rate=50") == pytest.approx(50.0)
    assert offered("limit=6") > 0


def test_a_sweep_has_a_row_each_a_capacity_and_a_plot(run_cli: RunCli, tmp_path: Path) -> None:
    target, plot = tmp_path / "result.json", tmp_path / "plot.png"
    words = (*SMALL, "rate=1,2000", "scheduler=fcfs,sjf", "ttft_slo_s=0.02", f"output={target}", f"plot={plot}")
    code, out, err = run_cli("simulate", *words)
    assert (code, err) == (0, "")
    results = json.loads(target.read_text())
    assert list(results) == [f"rate={rate} scheduler={name}" for rate in (1, 2000) for name in ("fcfs", "sjf")]
    assert all(name in out for name in results)
    rows = [line.split() for line in out.splitlines()]
    for name in ("fcfs", "sjf"):
        assert [f"scheduler={name}", "1", "2000:", "TTFT"] in [row[:4] for row in rows]
    assert plot.stat().st_size > 5_000
    _, out, _ = run_cli("simulate", *SMALL, "rate=1,2")
    assert ["all", "2", "or", "more", "-"] in [line.split() for line in out.splitlines()]
    _, out, _ = run_cli("simulate", *SMALL, "rate=1,2", "ttft_slo_s=0.001")
    assert ["all", "below", "1", "1:", "TTFT"] in [line.split()[:5] for line in out.splitlines()]


def test_tenants_priorities_and_sorts_of_targets_have_their_tables(run_cli: RunCli, trace: str, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    mix = ("num_tenants=12", "num_priorities=2", "relaxed_share=0.5")
    code, out, err = run_cli("simulate", *SMALL[:1], "limit=60", *SMALL[2:], *mix, f"output={target}")
    assert (code, err) == (0, "")
    for words in ("by tenant, the first 10 of 12", "by priority", "by targets", "largest service gap"):
        assert words in out
    rows = {words[0]: words for words in map(str.split, out.splitlines()) if words}
    assert "tenant-9" in rows
    assert "tenant-10" not in rows
    result = json.loads(target.read_text())
    assert len(result["by_tenant"]) == 12
    for grouping in ("by_tenant", "by_priority", "by_targets"):
        assert sum(group["num_requests"] for group in result[grouping].values()) == 60
    code, out, _ = run_cli("simulate", f"workload={trace}", "cache.num_blocks=500", "num_tenants=2", "rate=1,50")
    assert code == 0
    assert sum("tenant-1" in line for line in out.splitlines()) == 2
    assert "by priority" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("num_tenants=0",), "num_tenants"),
        (("relaxed_share=1.5",), "relaxed_share"),
        (("tenant_skew=-1",), "tenant_skew"),
        (("executor=local",), "runs executor=simulated only"),
        (("rate=0",), "rate"),
        (("burstiness=2", "workload=x.csv"), "burstiness, output_tokens, prompt_tokens: only of workload=generated"),
        (("output=nowhere/x.json",), "folder does not exist"),
        (("plot=x.txt",), "must end in"),
        (("executor.device=h100",), "Did you mean"),
        (("scheduler=fcfs,nope",), "nope"),
        (("limt=3",), "limit"),
        *(((f"{key}=inf",), key) for key in ("ttft_slo_s", "tpot_slo_s", "burstiness", "length_spread")),
    ],
)
def test_mistakes_are_named_before_anything_runs(run_cli: RunCli, words: tuple[str, ...], message: str) -> None:
    code, out, err = run_cli("simulate", *SMALL, *words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_missing_trace_is_named(run_cli: RunCli) -> None:
    code, out, err = run_cli("simulate", "workload=gone.csv")
    assert (code, out) == (2, "")
    assert "gone.csv: No such file" in err


def test_help_names_both_commands(run_cli: RunCli) -> None:
    code, out, _ = run_cli("simulate", "-h")
    assert code == 0
    assert "cache" in out
    assert "run" in out
    assert run_cli("simulate")[0] == 2
