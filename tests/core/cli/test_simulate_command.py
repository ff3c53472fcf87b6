"""`tokenloom simulate` and `tokenloom simulate cache` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokenloom.simulation.replay import SimulationRun, simulate

RunCli = Callable[..., tuple[int, str, str]]
HUGE = ("limit", "prompt_tokens", "output_tokens", "shared_prefix_tokens", "num_tenants", "cache.num_blocks")
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
        (("cache.num_blocks=10", "output=nowhere/x.json"), "output=nowhere/x.json: its folder does not exist"),
        (("cache.num_blocks=100000000000",), "cache.num_blocks=100000000000: must be less than 2147483648"),
        (("cache.num_blocks=10,10",), "cache.num_blocks=10 is given twice"),
        *(
            ((f"cache.num_blocks=10 {override}").split(), f"{override}: no effect on `tokenloom simulate cache`")
            for override in (
                *("scheduler.max_num_seqs=4", "scheduler=sjf", "model.max_model_len=100", "engine.seed=2"),
                *("cache.memory_fraction=0.5", "cache.host_memory_bytes=0", "executor=simulated", "quant=int8"),
                *("trace.file=x.jsonl", "debug.checks=full", "experiment=latency"),
            )
        ),
        (("cache.num_blocks=10", "scheduler=fcfs,sjf"), "scheduler=fcfs: no effect"),
    ],
)
def test_cache_replay_refuses_what_it_cannot_use(
    run_cli: RunCli, trace: str, words: tuple[str, ...], message: str
) -> None:
    code, _, err = run_cli("simulate", "cache", f"workload={trace}", *words)
    assert code == 2
    assert message in err


def test_cache_replay_takes_every_key_and_preset_that_changes_it(run_cli: RunCli, trace: str, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    words = ("cache=radix", "cache.eviction=slru", "cache.eviction.protected_share=0.5", "cache.block_size=512")
    sizes = ("cache.num_blocks=2000000000", "limit=3,12")
    code, _, err = run_cli("simulate", "cache", f"workload={trace}", *words, *sizes, f"output={target}")
    assert (code, err) == (0, "")
    results = json.loads(target.read_text())
    assert [result["num_requests"] for result in results.values()] == [3, 12]
    assert [result["num_blocks"] for result in results.values()] == [2_000_000_000] * 2
    # This preset sets cache.num_blocks, beside much that has no effect here.
    code, out, err = run_cli("simulate", "cache", f"workload={trace}", "experiment=debug")
    assert (code, err) == (0, "")
    assert "127 blocks" in out


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_cache_replay_refuses_an_id_that_follows_two_others(run_cli: RunCli, tmp_path: Path, cache: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"hash_ids": ids}) + "\n" for ids in ([11, 12, 4], [2], [14, 12, 15, 2])))
    code, out, err = run_cli("simulate", "cache", f"workload={path}", f"cache={cache}", "cache.num_blocks=9")
    assert (code, out) == (2, "")
    assert f"workload={path}: line 3: hash_ids: 12 follows 14 here, but follows 11 on line 1" in err


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
        (("output=nowhere/x.json",), "output=nowhere/x.json: its folder does not exist"),
        (("output=.",), "output=.: it is a folder"),
        (("output=/proc/x.json",), "output=/proc/x.json: it cannot be written"),
        ((f"plot={'x' * 300}.png",), "it cannot be written"),
        (("output=x.png", "plot=x.png"), "output and plot name the same file, x.png"),
        *(
            (("output=x.png", "plot=y.png", f"trace.file={name}"), f"{key} and trace.file name the same file, {name}")
            for key, name in (("output", "x.png"), ("plot", "y.png"))
        ),
        (("output=b", "trace.file=a,b"), "output and trace.file name the same file, b"),
        (("rate=1,1",), "rate=1 is given twice"),
        (("rate=1,1.0",), "rate=1.0 is given twice"),
        (("rate=range(3,3)",), "this sweep has no values"),
        *(((f"{key}={10**12}",), f"{key}=1000000000000: must be less than") for key in HUGE),
        (("length_spread=1e200",), "must be less than or equal to 100"),
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


@pytest.fixture
def at_once(tmp_path: Path) -> str:
    path = tmp_path / "work.json"
    path.write_text(json.dumps([{"prompt": [1, 2, 3], "max_tokens": 2}] * 3))
    return str(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rate=2",), "whose 3 requests arrive all at once"),
        (("rate=2", "limit=1"), "which has a single request here"),
        (("tenant_skew=1.5",), "tenant_skew=1.5 has no effect with num_tenants=1"),
        (("relaxed_factor=3",), "relaxed_factor=3.0 has no effect with relaxed_share=0.0"),
        (("workload_seed=3",), "nothing of this load is drawn"),
        (("workload_seed=3", "relaxed_share=1"), "nothing of this load is drawn"),
        (("workload=generated", "burstiness=2"), "burstiness=2 has no effect without a rate"),
        (("workload=generated", "num_prefixes=2"), "num_prefixes=2 has no effect with shared_prefix_tokens=0"),
        (("workload=generated", "workload_seed=3", "shared_prefix_tokens=5"), "nothing of this load is drawn"),
        (("workload=generated", "rate=2", "limit=1"), "which has a single request here"),
        (("limit=1,3", "num_tenants=2,1", "tenant_skew=1"), "tenant_skew=1.0 has no effect with num_tenants=1"),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "experiment"])
def test_keys_without_effect_on_the_load_are_refused(
    run_cli: RunCli, at_once: str, tmp_path: Path, command: str, words: tuple[str, ...], message: str
) -> None:
    own = ("executor=simulated", f"output={tmp_path / 'out'}", "cache.num_blocks=50")
    code, out, err = run_cli(command, f"workload={at_once}", *own, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("num_tenants=2", "tenant_skew=1", "workload_seed=3"),
        ("relaxed_share=0.5", "relaxed_factor=3", "workload_seed=3"),
        ("tenant_skew=0", "relaxed_factor=10", "workload_seed=0", "rate=null"),
        ("workload=generated", "limit=3", "rate=5", "burstiness=2", "workload_seed=3"),
        ("workload=generated", "limit=3", "shared_prefix_tokens=8", "num_prefixes=2", "workload_seed=3"),
        ("workload=generated", "limit=3", "length_spread=0.5", "workload_seed=3"),
    ],
)
def test_keys_with_an_effect_and_defaults_are_taken(run_cli: RunCli, at_once: str, words: tuple[str, ...]) -> None:
    code, out, err = run_cli("simulate", f"workload={at_once}", "cache.num_blocks=200", *words)
    assert (code, err) == (0, "")
    assert "3 of 3 completed" in out


def test_a_failing_point_does_not_lose_the_others(run_cli: RunCli, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    words = (*SMALL[:4], "cache.num_blocks=500,900000000,300", f"output={target}")
    code, out, err = run_cli("simulate", *words)
    assert code == 1
    assert "failed: cache.num_blocks=900000000: a KV cache of" in err
    assert list(json.loads(target.read_text())) == ["cache.num_blocks=500", "cache.num_blocks=300"]
    assert "cache.num_blocks=300" in out
    target.unlink()
    code, out, err = run_cli("simulate", *SMALL[:4], "cache.num_blocks=500,900000000", f"output={target}")
    assert (code, out.splitlines()[0]) == (1, "cache.num_blocks=500")
    assert list(json.loads(target.read_text())) == ["cache.num_blocks=500"]
    assert run_cli("simulate", *SMALL[:4], "cache.num_blocks=900000000,800000000")[:2] == (1, "")


@pytest.mark.parametrize("fault", [ZeroDivisionError("of a plugin"), KeyboardInterrupt()])
def test_what_has_run_survives_any_fault(
    fault: BaseException, run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(config: Any, *args: Any, **keywords: Any) -> SimulationRun:
        if config.scheduler.name == "sjf":
            raise fault
        return done(config, *args, **keywords)

    done = simulate
    monkeypatch.setattr("tokenloom.cli.simulate.run_simulation", failing)
    target = tmp_path / "result.json"
    code, _, err = run_cli("simulate", *SMALL, "scheduler=fcfs,sjf,priority", f"output={target}")
    found = list(json.loads(target.read_text()))
    if isinstance(fault, KeyboardInterrupt):
        assert (code, found) == (130, ["scheduler=fcfs"])
    else:
        assert (code, found) == (1, ["scheduler=fcfs", "scheduler=priority"])
        assert "failed: scheduler=sjf: ZeroDivisionError: of a plugin" in err


def test_a_result_may_bear_the_name_of_the_generated_load(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli("simulate", *SMALL, "output=generated")[::2] == (0, "")
    assert json.loads(Path("generated").read_text())["num_requests"] > 0


@pytest.mark.parametrize(
    "words",
    [
        ("workload=generated", "rate=1e-300"),
        ("workload=generated", "burstiness=0.5", "rate=1e-30"),
        ("workload=spread.jsonl", "rate=1e-10"),
        ("workload=late.jsonl",),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "experiment", "bench serve"])
def test_a_load_over_a_time_that_no_clock_resolves_is_refused(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, last_ms in (("spread", 2.0), ("late", 1e15)):
        lines = [{"timestamp": ms, "input_length": 5, "output_length": 2, "hash_ids": [1]} for ms in (0.0, last_ms)]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = ("base_url=http://h",) if command == "bench serve" else ("executor=simulated", "cache.num_blocks=50")
    code, out, err = run_cli(*command.split(), *own, *words)
    assert (code, out) == (2, "")
    assert f"error: {words[-1]}: " in err
    assert "requests would arrive over" in err
    assert "allowed are 1e+09 s" in err


@pytest.mark.parametrize("command", ["simulate", "experiment"])
def test_points_do_not_share_a_trace_file(run_cli: RunCli, tmp_path: Path, command: str) -> None:
    trace = tmp_path / "trace.jsonl"
    own = (*SMALL, "executor=simulated", f"output={tmp_path / 'out'}")
    code, out, err = run_cli(command, *own, "scheduler=fcfs,sjf", f"trace.file={trace}")
    assert (code, out) == (2, "")
    assert f"trace.file={trace}: several engines" in err
    assert not list(tmp_path.iterdir())
    traces = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    assert run_cli(command, *own, f"trace.file={traces[0]},{traces[1]}")[::2] == (0, "")
    assert all(path.stat().st_size > 1000 for path in traces)


def test_a_device_that_does_not_exist_is_named_before_any_point_runs(run_cli: RunCli) -> None:
    code, out, err = run_cli("simulate", *SMALL, "executor.device=h100_8b,h100")
    assert (code, out) == (2, "")
    assert "Did you mean" in err


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
