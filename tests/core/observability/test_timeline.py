"""Step timelines: of a simulated engine, whose times are known exactly, and as Chrome traces."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tokenloom.clock import LapTimer, VirtualClock
from tokenloom.compose import compose_config
from tokenloom.engine import Engine
from tokenloom.engine_builder import build_engine
from tokenloom.engine_process.fault import Fault
from tokenloom.engine_process.messages import Refused
from tokenloom.errors import PluginContractError, RequestError
from tokenloom.observability.chrome_trace import chrome_trace
from tokenloom.observability.profile_observer import ProfileObserver
from tokenloom.observability.profile_run import summarize
from tokenloom.observability.timeline import MAX_RECORDED_STEPS, StepTimeline
from tokenloom.request import Request
from tokenloom.sampling_params import SamplingParams

PHASES = ["schedule", "commit plan", "launch", "forward", "commit", "finish"]


class Simulated:
    """A simulated engine with a timeline on its clock."""

    def __init__(self, *overrides: str) -> None:
        clock = VirtualClock()
        self.timeline = StepTimeline(clock)
        words = ["executor=simulated", "cache.num_blocks=500", "scheduler.max_num_batched_tokens=64", *overrides]
        self.config = compose_config(words).engine
        self.engine: Engine = build_engine(self.config, clock=clock, taps=(self.timeline,))
        self.clock = clock

    def add(self, name: str, num_prompt: int, max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self.engine.add_request(Request(name, list(range(num_prompt)), params, 0, num_prompt + max_tokens))

    def step(self) -> None:
        self.engine.step()
        self.timeline.end_step(self.engine)


def test_steps_are_recorded_with_their_phases_and_counts() -> None:
    simulated = Simulated("scheduler.max_num_seqs=2", "cache=none")
    for name, num_prompt in (("a", 100), ("b", 20), ("c", 5)):
        simulated.add(name, num_prompt, 3)
    simulated.timeline.start(3)
    for _ in range(4):
        simulated.step()
    steps = simulated.timeline.steps
    assert [[phase.name for phase in step.phases] for step in steps] == [PHASES] * 3
    counts = [(step.step_id, step.num_rows, step.num_prompt_rows, step.num_tokens, step.num_waiting) for step in steps]
    assert counts == [(0, 1, 1, 64, 2), (1, 2, 2, 56, 1), (2, 2, 0, 2, 1)]
    assert [sum(step.kv_blocks.values()) for step in steps] == [500] * 3
    # On a virtual clock all time passes in the forward pass, and one step begins where the last one ended.
    for step in steps:
        forward = step.phases[PHASES.index("forward")]
        assert forward.is_inner
        assert forward.start_s == step.start_s
        assert forward.end_s == pytest.approx(step.end_s)
        assert sum(phase.end_s - phase.start_s for phase in step.phases if not phase.is_inner) == pytest.approx(
            step.end_s - step.start_s
        )
    assert all(earlier.end_s == later.start_s for earlier, later in pairwise(steps))


def test_nothing_is_recorded_before_it_is_asked_for_and_anew_each_time() -> None:
    simulated = Simulated()
    simulated.add("a", 10, 9)
    simulated.step()
    assert simulated.timeline.steps == []
    for _ in range(2):
        simulated.timeline.start(2)
        simulated.step()
        assert simulated.timeline.is_recording
        simulated.step()
        assert not simulated.timeline.is_recording
    assert [step.step_id for step in simulated.timeline.steps] == [3, 4]


def test_drafts_and_preemptions_are_counted() -> None:
    simulated = Simulated("spec_decode=ngram", "executor.acceptance=[1.0]", "spec_decode.policy.num_draft_tokens=2")
    simulated.add("a", 10, 7)
    simulated.timeline.start(2)
    simulated.step()
    simulated.step()
    counts = [
        (s.num_tokens, s.num_draft_tokens, s.num_accepted_tokens, s.num_prompt_rows) for s in simulated.timeline.steps
    ]
    assert counts == [(10, 0, 0, 1), (3, 2, 2, 0)]


def test_timeline_changes_no_decision(tmp_path: Path) -> None:
    texts = []
    for name in ("plain", "timed"):
        file = tmp_path / f"{name}.jsonl"
        simulated = Simulated(f"trace.file={file}", "scheduler.max_num_seqs=2")
        for number in range(4):
            simulated.add(f"r{number}", 30 + number, 3)
        if name == "timed":
            simulated.timeline.start(100)
        while simulated.engine.has_work():
            simulated.step()
        simulated.engine.close()
        texts.append(file.read_text(encoding="utf-8").partition("\n")[2])
    assert texts[0] == texts[1]
    assert len(simulated.timeline.steps) > 3


def test_scheduler_that_takes_over_is_recorded_and_traced_like_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    simulated = Simulated(f"trace.file={file}")
    simulated.add("a", 10, 2)
    simulated.timeline.start(4)
    for _ in range(2):
        simulated.step()
    simulated.engine.replace_scheduler(compose_config(["scheduler=sjf"]).engine.scheduler)
    simulated.add("b", 20, 2)
    for _ in range(2):
        simulated.step()
    simulated.engine.close()
    assert not simulated.timeline.is_recording
    assert [[phase.name for phase in step.phases] for step in simulated.timeline.steps] == [PHASES] * 4
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    events = [line["event"] for line in lines[1:]]
    assert events == ["arrive", "plan", "result", "plan", "result"] * 2


def test_what_is_noted_behind_a_step_belongs_to_it() -> None:
    simulated = Simulated()
    simulated.add("a", 10, 5)
    simulated.timeline.note("detokenize", 0.0)
    simulated.timeline.start(1)
    simulated.step()
    start_s = simulated.clock.now()
    simulated.clock.advance(0.5)
    simulated.timeline.note("detokenize", start_s)
    (step,) = simulated.timeline.steps
    assert (step.phases[-1].name, step.end_s - start_s) == ("detokenize", 0.5)


def test_lap_timer_splits_time_without_a_gap() -> None:
    clock = VirtualClock(5.0)
    timer = LapTimer(clock)
    for phase, duration_s in (("build", 1.0), ("forward", 2.0), ("build", 0.5)):
        clock.advance(duration_s)
        timer.lap(phase)
    assert timer.times_s == {"build": 1.5, "forward": 2.0}
    assert list(timer.times_s) == ["build", "forward"]


# ---- Chrome traces ----


def recorded(num_steps: int) -> Simulated:
    simulated = Simulated()
    simulated.clock.advance(1000.0)
    simulated.add("a", 100, num_steps)
    simulated.timeline.start(num_steps)
    for _ in range(num_steps):
        simulated.step()
    return simulated


def test_chrome_trace_nests_phases_in_steps_and_counts() -> None:
    steps = recorded(3).timeline.steps
    op = {"ph": "X", "pid": 7, "name": "aten::mm", "ts": steps[1].start_s * 1e6, "dur": 2.0}
    trace: dict[str, Any] = json.loads(json.dumps(chrome_trace(steps, {"model": "none"}, [op, {"ph": "M", "pid": 7}])))
    assert trace["otherData"] == {"model": "none"}
    events = trace["traceEvents"]
    slices = [event for event in events if event.get("cat") == "step"]
    wholes = [event for event in slices if event["name"].startswith("step ")]
    assert [event["name"] for event in wholes] == ["step 0", "step 1", "step 2"]
    assert wholes[0]["ts"] == 0.0
    assert wholes[0]["args"]["num_tokens"] == 64
    for whole in wholes:
        inside = slices[slices.index(whole) + 1 :][: len(PHASES)]
        assert [event["name"] for event in inside] == PHASES
        for event in inside:
            assert whole["ts"] <= event["ts"]
            assert event["ts"] + event["dur"] <= whole["ts"] + whole["dur"] + 1e-3
    counters = {event["name"]: event["args"] for event in events if event["ph"] == "C"}
    assert counters["requests"] == {"running": 1, "waiting": 0}
    assert set(counters["KV blocks"]) == {"free", "active", "cached", "in_transfer"}
    placed = next(event for event in events if event.get("name") == "aten::mm")
    assert placed["ts"] == pytest.approx(wholes[1]["ts"])


def test_summary_is_in_the_order_of_the_phases() -> None:
    summaries = summarize(recorded(3).timeline.steps)
    assert [summary.name for summary in summaries] == [*PHASES, "step"]
    by_name = {summary.name: summary for summary in summaries}
    assert by_name["forward"].total_s == pytest.approx(by_name["step"].total_s)
    assert by_name["step"].num_steps == 3


# ---- of a served engine ----


def test_served_engine_is_profiled_by_two_operations() -> None:
    simulated = Simulated()
    observer = ProfileObserver(simulated.engine, simulated.timeline, {"model": "none"})
    operations = observer.operations()
    simulated.add("a", 10, 9)
    number = operations["profile_start"]({"steps": 2})
    simulated.engine.step()
    observer.stepped([])
    assert operations["profile_take"]({"number": number, "only_done": True}) is None
    partly = operations["profile_take"]({"number": number})
    assert "step 0" in {event["name"] for event in partly["traceEvents"]}
    simulated.engine.step()
    observer.stepped([])
    done = operations["profile_take"]({"number": number, "only_done": True})
    names = {event["name"] for event in done["traceEvents"]}
    assert {"step 0", "step 1", "forward"} <= names
    operations["profile_start"]({"steps": 1})
    with pytest.raises(RequestError, match="another one took its place"):
        operations["profile_take"]({"number": number})
    # What else a loop tells is none of its business.
    observer.refused(Refused("r", Fault("internal", "x")))
    observer.plan_failed(PluginContractError("scheduler=x", "a rule", "x"))
    observer.accepted([])


@pytest.mark.parametrize("steps", [0, -1, MAX_RECORDED_STEPS + 1, 2**63, 1.5, "3", None, True, float("nan")])
def test_step_counts_that_make_no_sense_are_refused(steps: object) -> None:
    simulated = Simulated()
    start = ProfileObserver(simulated.engine, simulated.timeline, {}).operations()["profile_start"]
    with pytest.raises(RequestError, match="steps="):
        start({"steps": steps})
