"""`tokenloom experiment` from the command line, simulated and on a real tiny model."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom.bench import plot_file
from tokenloom.experiments import runs
from tokenloom.simulation.replay import SimulationRun

RunCli = Callable[..., tuple[int, str, str]]
SMALL = ("limit=8", "prompt_tokens=30", "output_tokens=5", "cache.num_blocks=200")
SIMULATED = (*SMALL, "executor=simulated")
NAMES = [f"scheduler={scheduler} cache={cache}" for scheduler in ("fcfs", "priority") for cache in ("hash", "radix")]


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "results.csv").read_text().splitlines()))


def test_a_simulated_experiment_writes_runs_tables_and_a_plot(run_cli: RunCli, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "results"
    words = (*SIMULATED, "scheduler=fcfs,priority", "cache=hash,radix", "rate=4", f"output={folder}")
    code, out, err = run_cli("experiment", *words)
    assert (code, err) == (0, "")
    assert all(name in out for name in NAMES)
    assert "latency.ttft_s.p99" in out
    results = read(folder)
    assert [result["name"] for result in results] == NAMES
    assert results[1]["changes"] == {"scheduler": "fcfs", "cache": "radix"}
    assert results[1]["config"]["cache"]["name"] == "radix"
    assert all(result["num_completed"] == 8 for result in results)
    assert all(result["provenance"]["packages"]["tokenloom"] for result in results)
    assert 0.0 < results[0]["kv_use"]["used_share"] < 1.0
    rows = table(folder)
    assert [row["configuration"] for row in rows] == NAMES
    assert float(rows[0]["latency.itl_s.max"]) == results[0]["latency"]["itl_s"]["max"]
    assert (folder / "results.md").read_text().count("\n") == 6
    assert (folder / "results.png").stat().st_size > 5_000


def test_a_real_experiment_has_the_same_figures(run_cli: RunCli, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", with_tokenizer=True)
    words = (*SMALL, f"model={model}", "engine.num_threads=1", "cache=none,hash", f"output={tmp_path / 'found'}")
    code, out, err = run_cli("experiment", *words, "plot=false", "shared_prefix_tokens=64")
    assert (code, err) == (0, "")
    results = read(tmp_path / "found")
    assert [result["num_output_tokens"] for result in results] == [40, 40]
    assert results[0]["hit_ratio"] == 0.0 < results[1]["hit_ratio"]
    assert "cache=hash" in out
    assert not [line for line in out.splitlines() if "cache=" in line and " - " in line], "a figure is missing"
    assert not (tmp_path / "found" / "results.png").exists()


def test_schedulers_see_tenants_priorities_and_targets_in_real_runs_too(run_cli: RunCli, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", with_tokenizer=True)
    mix = ("num_tenants=3", "num_priorities=2", "relaxed_share=0.5", "ttft_slo_s=3")
    seen: list[list[tuple[Any, ...]]] = []
    for name, own in (("real", (f"model={model}", "engine.num_threads=1")), ("simulated", ("executor=simulated",))):
        trace = tmp_path / f"{name}.jsonl"
        words = (*SMALL, *own, *mix, f"trace.file={trace}", "plot=false", f"output={tmp_path / name}")
        assert run_cli("experiment", *words)[::2] == (0, "")
        records = [json.loads(line) for line in trace.read_text().splitlines()]
        arrivals = [record for record in records if record.get("event") == "arrive"]
        seen.append([(r["tenant"], r.get("priority", 0), r["ttft_slo_s"], r["tpot_slo_s"]) for r in arrivals])
    assert seen[0] == seen[1]
    tenants, priorities, *targets = zip(*seen[0], strict=True)
    assert set(zip(*targets, strict=True)) == {(3.0, 0.1), (30.0, 1.0)}
    assert min(len(set(tenants)), len(set(priorities))) > 1


@pytest.mark.parametrize("name", ["results.csv", "trace.jsonl", "."])
def test_a_trace_among_the_results_is_refused(run_cli: RunCli, tmp_path: Path, name: str) -> None:
    (tmp_path / "found").mkdir()
    trace, output = tmp_path / "found" / name, tmp_path / "found"
    if name == ".":
        output.rmdir()
    code, out, err = run_cli("experiment", *SIMULATED, "plot=false", f"output={output}", f"trace.file={trace}")
    assert (code, out) == (2, "")
    assert f"lies in output={output}, which holds the results and nothing else" in err
    assert name == "." or not list(output.iterdir())


def test_a_failing_point_does_not_lose_the_others(run_cli: RunCli, tmp_path: Path) -> None:
    words = (*SIMULATED, "cache.num_blocks=200,900000000,300", "plot=false", f"output={tmp_path / 'found'}")
    code, out, err = run_cli("experiment", *words)
    assert code == 1
    assert "failed: cache.num_blocks=900000000: a KV cache of" in err
    assert "failed" in out
    rows = table(tmp_path / "found")
    assert [row["status"] for row in rows] == ["done", "failed", "done"]
    failed = read(tmp_path / "found")[1]
    assert "does not fit" in failed["error"]
    assert failed["config"]["cache"]["num_blocks"] == 900000000


@pytest.mark.parametrize("fault", [ZeroDivisionError("of a plugin"), KeyboardInterrupt()])
def test_what_has_run_survives_any_fault(
    fault: BaseException, run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(config: Any, *args: Any, **keywords: Any) -> SimulationRun:
        if config.scheduler.name == "sjf":
            raise fault
        return done(config, *args, **keywords)

    done = runs.simulate
    monkeypatch.setattr(runs, "simulate", failing)
    words = (*SIMULATED, "scheduler=fcfs,sjf,priority", "plot=false", f"output={tmp_path / 'found'}")
    code, _, err = run_cli("experiment", *words)
    rows = table(tmp_path / "found")
    if isinstance(fault, KeyboardInterrupt):
        assert (code, [row["status"] for row in rows]) == (130, ["done"])
    else:
        assert (code, [row["status"] for row in rows]) == (1, ["done", "failed", "done"])
        assert "ZeroDivisionError: of a plugin" in err


def test_results_go_to_a_dated_folder_by_default(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run_cli("experiment", *SIMULATED, "plot=false")
    assert code == 0
    (table,) = tmp_path.glob("multirun/*/*/results.md")
    assert str(table.parent.relative_to(tmp_path)) in out


def test_a_folder_with_other_results_is_left_alone(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("mine")
    code, _, err = run_cli("experiment", *SIMULATED, f"output={tmp_path}")
    assert code == 2
    assert "no empty folder" in err
    assert (tmp_path / "results.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("executor=local", "rate=4"), "executor=local runs all requests of an experiment at once"),
        (("scheduler=fcfs,nope",), "nope"),
        (("burstiness=2", "workload=x.csv"), "only of workload=generated"),
        (("workload=gone.csv", "limit=null", "prompt_tokens=512"), "only of workload=generated"),
        (("figures=[]",), "figures"),
        (("sweep=3",), "sweep"),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    run_cli: RunCli, words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    code, out, err = run_cli("experiment", *SIMULATED, f"output={tmp_path / 'found'}", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "found").exists()


def test_a_figure_that_does_not_exist_costs_one_run_at_most(run_cli: RunCli, tmp_path: Path) -> None:
    words = (*SIMULATED, "figures=[latency.ttft_s.p98]", "scheduler=fcfs,sjf", "plot=false")
    code, _, err = run_cli("experiment", *words, f"output={tmp_path / 'found'}")
    assert code == 2
    assert "latency.ttft_s.p99" in err
    assert [row["configuration"] for row in table(tmp_path / "found")] == ["scheduler=fcfs"]


def test_a_figure_that_only_a_later_run_has_is_waited_for(run_cli: RunCli, tmp_path: Path) -> None:
    words = (*SIMULATED, "figures=[fairness.service_gap]", "num_tenants=1,2", "rate=4", "plot=false")
    code, _, err = run_cli("experiment", *words, f"output={tmp_path / 'found'}")
    assert (code, err) == (0, "")


def test_missing_matplotlib_is_named_with_the_remedy(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot_file, "find_spec", lambda _: None)
    code, _, err = run_cli("experiment", *SIMULATED, f"output={tmp_path / 'found'}")
    assert code == 2
    assert "pip install 'tokenloom[plot]', or say plot=false" in err
    assert run_cli("experiment", *SIMULATED, f"output={tmp_path / 'found'}", "plot=false")[0] == 0
