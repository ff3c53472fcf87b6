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
    assert run_cli("trace", *words) == (2, "", "error: nothing.jsonl: No such file or directory\n")


@pytest.mark.parametrize("command", ["replay", "diff"])
def test_a_folder_is_refused_by_its_name(command: str, run_cli: RunCli, tmp_path: Path) -> None:
    words = [str(tmp_path)] * (2 if command == "diff" else 1)
    assert run_cli("trace", command, *words) == (2, "", f"error: {tmp_path}: Is a directory\n")


def cut_before(trace: Path, event: str, place: int = 0) -> None:
    """Cuts a trace off at the boundary of a line: before the place-th record of a kind."""
    lines = trace.read_text().splitlines(keepends=True)
    numbers = [number for number, line in enumerate(lines) if f'"event":"{event}"' in line]
    trace.write_text("".join(lines[: numbers[place]]))


@pytest.mark.parametrize("event", ["arrive", "plan"])
def test_replay_refuses_a_trace_without_a_plan(event: str, run_cli: RunCli, trace: Path) -> None:
    cut_before(trace, event)
    code, out, err = run_cli("trace", "replay", str(trace))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {trace}: the trace holds no plan")


@pytest.mark.parametrize(("event", "place", "num_equal"), [("result", 0, 1), ("plan", 1, 1), ("result", 2, 3)])
def test_replay_says_that_a_trace_ends_before_its_requests(
    event: str, place: int, num_equal: int, run_cli: RunCli, trace: Path
) -> None:
    cut_before(trace, event, place)
    code, out, err = run_cli("trace", "replay", str(trace))
    assert (code, out) == (0, f"{num_equal} plans are equal\n")
    assert err.startswith("note: the trace tells no end of 6 requests: ")
