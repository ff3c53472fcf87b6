"""What somebody sees who watches an engine, on a virtual clock, against values worked out by hand."""

from __future__ import annotations

import random
from typing import Any

from tokenloom.engine_output import EngineOutput
from tokenloom.observability.engine_live import EngineLive
from tokenloom.request import Request
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, PreemptAt, build_fcfs, oracle_drafts


class Watched:
    """An engine whose steps take the seconds that a test says, and what is seen of it."""

    def __init__(self, **engine: Any) -> None:
        self.harness = EngineHarness(**engine)
        self.live = EngineLive(self.harness.engine, self.harness.clock)

    def add(self, name: str, num_prompt: int = 4, max_tokens: int = 4) -> Request:
        request = self.harness.request(name, range(1, num_prompt + 1), max_tokens)
        self.harness.add(request)
        self.live.accepted((request,))
        return request

    def step(self, duration_s: float = 1.0) -> list[EngineOutput]:
        self.harness.clock.advance(duration_s)
        outputs = self.harness.engine.step()
        self.live.stepped(outputs)
        return outputs

    def run(self) -> None:
        while self.harness.engine.has_work():
            self.step()

    def end(self, output: EngineOutput | None) -> None:
        assert output is not None
        self.live.ended(output)

    def now(self, after_s: float = 1.0) -> dict[str, Any]:
        self.harness.clock.advance(after_s)
        return self.live.now()

    def steps(self) -> list[tuple[int, ...]]:
        """Of each step: tokens of prompts, of decoding, drafts; requests."""
        return [step[1:5] for step in self.now()["steps"]]


def test_steps_show_what_their_tokens_were_for() -> None:
    watched = Watched(budget=4)
    watched.add("one", num_prompt=6, max_tokens=3)
    watched.step()
    watched.step()
    watched.add("two", num_prompt=2, max_tokens=1)
    watched.step()
    watched.step()
    assert watched.steps() == [(4, 0, 0, 1), (2, 0, 0, 1), (2, 1, 0, 2), (0, 1, 0, 1)]
    assert [step[0] for step in watched.now()["steps"]] == [1, 2, 3, 4]


def test_drafts_are_told_from_tokens_that_are_sure() -> None:
    policy = ChosenDrafts(lambda request, _: min(2, request.num_output_tokens))
    watched = Watched(draft_policy=policy, drafts=lambda model: oracle_drafts(model, lambda *_: 1))
    watched.add("one", max_tokens=6)
    watched.run()
    steps = watched.steps()
    stats = watched.harness.engine.stats
    assert steps[0] == (4, 0, 0, 1)
    assert all(step[:2] == (0, 1) for step in steps[1:])
    assert sum(step[2] for step in steps) == stats.num_draft_tokens > 0


def test_every_computed_token_is_in_some_step() -> None:
    """Also where requests are preempted, end in mid-decode, or never begin."""
    draw = random.Random(7)
    watched = Watched(
        num_blocks=(24,), scheduler=lambda limits: PreemptAt(build_fcfs(limits), {"r3": [2], "r5": [1]}), budget=16
    )
    for index in range(12):
        watched.add(f"r{index}", draw.randrange(1, 30), draw.randrange(1, 9))
        watched.step()
        if index % 4 == 3:
            aborted = watched.harness.engine.abort(f"r{index}")
            if aborted is not None:
                watched.end(aborted)
    watched.run()
    now, stats = watched.now(), watched.harness.engine.stats
    assert sum(step[1] + step[2] + step[3] for step in now["steps"]) == stats.num_computed_tokens
    assert all(part >= 0 for step in now["steps"] for part in step)
    assert now["num_preemptions"] == stats.num_preemptions > 0
    assert now["minute"]["num_finished"] == 12
    assert (now["running"], now["waiting"]) == (0, 0)


def test_latencies_are_of_the_last_minute() -> None:
    watched = Watched()
    watched.add("slow", max_tokens=3)
    for duration_s in (8.0, 2.0, 4.0):
        watched.step(duration_s)
    found = watched.now(0.0)
    assert found["ttft_s"] == found["queue_s"] == {"count": 1, "p50": 8.0, "p99": 8.0}
    assert found["tpot_s"] == {"count": 1, "p50": 3.0, "p99": 3.0}
    watched.harness.clock.advance(40.0)
    watched.add("fast", max_tokens=2)
    watched.step(0.5)
    watched.step(1.0)
    found = watched.now(0.0)
    assert found["ttft_s"] == {"count": 2, "p50": 4.25, "p99": 7.925}
    assert found["tpot_s"]["p50"] == 2.0
    found = watched.now(30.0)
    assert (found["ttft_s"]["p99"], found["tpot_s"]["p99"]) == (0.5, 1.0)
    assert watched.now(60.0)["ttft_s"] == {"count": 0, "p50": None, "p99": None}


def test_a_request_that_was_aborted_has_no_tpot() -> None:
    watched = Watched()
    watched.add("left", max_tokens=9)
    for _ in range(3):
        watched.step()
    watched.end(watched.harness.engine.abort("left"))
    found = watched.now()
    assert (found["ttft_s"]["count"], found["tpot_s"]["count"], found["minute"]["num_finished"]) == (1, 0, 1)


def test_rates_are_of_whole_seconds_and_fall_to_zero() -> None:
    watched = Watched()
    watched.add("one", num_prompt=6, max_tokens=6)
    watched.harness.clock.advance(9.0)
    for _ in range(6):
        watched.step(0.5)
    # Steps at 9.5 s to 12.0 s; the one at 12.0 s is in a second that has not ended.
    found = watched.now(0.0)
    assert found["output_tokens_by_s"][-4:] == [0, 1, 2, 2]
    assert found["output_tokens_per_s"] == 5 / 3
    assert found["prompt_tokens_per_s"] == 2.0
    assert len(found["output_tokens_by_s"]) == 60
    found = watched.now(40.0)
    assert (found["output_tokens_per_s"], sum(found["output_tokens_by_s"])) == (0.0, 6)
    assert sum(watched.now(30.0)["output_tokens_by_s"]) == 0


def test_prefix_hits_count_tokens_of_prompts_that_began() -> None:
    watched = Watched(block_size=4)
    watched.add("first", num_prompt=9, max_tokens=1)
    watched.run()
    watched.add("second", num_prompt=9, max_tokens=1)
    watched.run()
    minute = watched.now()["minute"]
    assert (minute["prefix_queries"], minute["prefix_hits"]) == (18, 8)
    assert watched.now(61.0)["minute"]["prefix_queries"] == 0


def test_the_map_is_the_pools_and_shared_blocks_are_counted() -> None:
    watched = Watched(block_size=4, num_blocks=(12,))
    for name in ("first", "second"):
        watched.add(name, num_prompt=9, max_tokens=8)
        watched.step()
    kv = watched.now()["kv"]
    (blocks,) = kv["maps"]
    assert len(blocks) == sum(kv["usage"].values()) == 12
    assert blocks.count("s") == kv["num_shared"] == 2
    assert blocks.count("a") + kv["num_shared"] == kv["usage"]["active"]
    assert kv["blocks_per_cell"] == [1]


def test_a_large_pool_is_shown_in_few_cells() -> None:
    watched = Watched(num_blocks=(100_001,), checks="off")
    watched.add("one")
    watched.step()
    kv = watched.now()["kv"]
    assert kv["blocks_per_cell"] == [49]
    assert len(kv["maps"][0]) == 2041
    assert kv["maps"][0].count("a") == 1


def test_an_answer_stands_for_a_moment_whoever_asks() -> None:
    watched = Watched()
    first = watched.now()
    watched.add("one")
    watched.step(0.1)
    assert watched.live.now() is first
    assert watched.now(0.2)["num_steps"] == 1


def test_nothing_is_remembered_of_requests_that_ended() -> None:
    watched = Watched()
    for index in range(300):
        watched.add(f"r{index}", max_tokens=2)
        if index % 3 == 0:
            watched.end(watched.harness.engine.abort(f"r{index}"))
        watched.step(0.3)
    watched.run()
    live = watched.live
    assert (len(live._begun), len(live._unbegun), len(live._seconds), len(live._steps)) == (0, 0, 61, 120)
