"""`tokenloom trace` from the command line: what it prints and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

RunCli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trace(run_cli: RunCli, tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    words = ("workload=generated", "limit=6", "prompt_tokens=30", "output_tokens=5", "cache.num_blocks=100")
    code, _, err = run_cli("simulate", *words, f"trace.file={path}")
    assert (code, err) == (0, "")
    return path


def test_replay_of_what_was_recorded_ends_with_0(run_cli: RunCli, trace: Path) -> None:
    num_plans = trace.read_text().count('{"event":"plan"')
    assert run_cli("trace", "replay", str(trace)) == (0, f"{num_plans} plans are equal\n", "")


def test_replay_shows_both_plans_and_ends_with_1(run_cli: RunCli, trace: Path) -> None:
    trace.write_text(
        trace.read_text().replace(
            '"request":"req-0","computed":0,"tokens":', '"request":"req-0","computed":0,"tokens":9', 1
        )
    )
    code, out, err = run_cli("trace", "replay", str(trace))
    assert (code, err) == (1, "")
    first, where, recorded, replayed = out.splitlines()
    assert first == "0 plans are equal"
    assert where.startswith("first divergence in step 0 (plan, request req-0): tokens is 9")
    plans = [json.loads(line.partition(": ")[2]) for line in (recorded, replayed)]
    assert plans[0]["rows"][0]["tokens"] != plans[1]["rows"][0]["tokens"]


def test_diff_of_a_trace_with_itself_ends_with_0(run_cli: RunCli, trace: Path) -> None:
    code, out, err = run_cli("trace", "diff", str(trace), str(trace))
    assert (code, err) == (0, "")
    assert "all decisions are equal" in out
    assert "scheduled tokens" in out


@pytest.mark.parametrize("words", [("replay", "nothing.jsonl"), ("diff", "nothing.jsonl", "nothing.jsonl")])
def test_a_missing_file_is_an_error_without_a_traceback(words: tuple[str, ...], run_cli: RunCli) -> None:
    code, out, err = run_cli("trace", *words)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert "nothing.jsonl" in err
