"""`tokenloom profile` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_llama

RunCli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    model = write_tiny_llama(tmp_path_factory.mktemp("model"), with_tokenizer=True)
    return (f"model={model}", "cache.num_blocks=64", "scheduler.max_num_batched_tokens=48", "engine.num_threads=1")


def test_profile_writes_a_trace_and_prints_a_table(run_cli: RunCli, small: tuple[str, ...], tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    words = ("num_requests=2", "prompt_tokens=30", "output_tokens=6", "steps=4", "skip=1")
    code, out, err = run_cli("profile", *small, *words, f"output={target}")
    assert (code, err) == (0, f"Wrote {target}; open it in ui.perfetto.dev.\n")
    assert "4 steps" in out
    for phase in ("schedule", "commit plan", "launch", "forward", "sample", "commit", "detokenize", "step"):
        assert phase in out
    trace = json.loads(target.read_text())
    assert [e["name"] for e in trace["traceEvents"] if e["name"].startswith("step ")] == [
        f"step {i}" for i in range(1, 5)
    ]
    assert trace["otherData"]["config"]["steps"] == 4
    assert trace["otherData"]["provenance"]["packages"]["tokenloom"]


def test_profile_takes_the_workload_of_a_bench(run_cli: RunCli, small: tuple[str, ...], tmp_path: Path) -> None:
    workload, target = tmp_path / "mixed.json", tmp_path / "trace.json"
    workload.write_text(json.dumps([{"prompt": [1, 2, 3], "max_tokens": 4}]))
    code, _, err = run_cli("profile", *small, f"workload={workload}", "steps=50", f"output={target}")
    assert code == 0
    assert "The workload ended after 4 of 50 steps." in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("steps=0",), "steps=0"),
        (("workload=missing.json",), "missing.json"),
        (("workload=mixed.json", "num_requests=3"), "num_requests: only of workload=generated"),
        (("output=no/such/folder/x.json",), "its folder does not exist"),
        (("output=.",), "is a folder"),
        (("output=x.json", "trace.file=x.json"), "output and trace.file name the same file, x.json"),
        (("trace.file=trace.json",), "output and trace.file name the same file, trace.json"),
        (("skip=900", "output=x.json", "output_tokens=2"), "skip=900"),
        (("executor=simulated",), "executor=local"),
    ],
)
def test_mistakes_are_told(
    run_cli: RunCli,
    small: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run_cli("profile", *small, *words)
    assert code == 2
    assert message in err
    assert not list(tmp_path.iterdir())
