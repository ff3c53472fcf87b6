"""Engine: how requests come in and end, and what is reported of them."""

from __future__ import annotations

import pytest

from tokenloom.batch import SchedulePlan
from tokenloom.errors import EngineDeadError, RequestError
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import (
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    SchedulerEvent,
    StepLanded,
)
from tokenloom.request import FinishReason, RequestStatus
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, build_fcfs, oracle_drafts


def test_one_request_yields_what_the_model_says() -> None:
    harness = EngineHarness()
    harness.run(harness.request("r", [1, 2, 3], 5))
    harness.check_truth()
    assert len(harness.tokens["r"]) == 5
    assert len(harness.executor.plans) == 5


def test_empty_engine_does_nothing() -> None:
    harness = EngineHarness()
    assert not harness.engine.has_work()
    assert harness.step() == []
    assert harness.executor.plans == []


def test_requests_of_all_lengths_run_together() -> None:
    harness = EngineHarness()
    harness.run(*[harness.request(f"r{i}", range(100 * i, 100 * i + i + 1), 3 + i) for i in range(12)])
    harness.check_truth()


def test_outputs_are_deltas_and_carry_times_and_logprobs() -> None:
    harness = EngineHarness(budget=2)
    request = harness.request("r", [1, 2, 3], 2, logprobs=0)
    harness.clock.advance(5.0)
    harness.add(request)
    assert harness.step() == []
    (first,) = harness.step()
    (last,) = harness.step()
    assert [len(first.token_ids), len(last.token_ids)] == [1, 1]
    assert [entry.token_id for entry in (*first.logprobs, *last.logprobs)] == harness.tokens["r"]
    assert (first.finish_reason, last.finish_reason) == (None, FinishReason.LENGTH)
    assert (first.times.arrival_s, first.times.first_scheduled_s, first.times.first_token_s) == (0.0, 6.0, 7.0)
    assert (first.times.finish_s, last.times.finish_s) == (None, 8.0)


# ---- what is refused ----


def test_prompt_that_outgrows_the_pool_is_refused_alone() -> None:
    """63 blocks of 49 usable ones: an error at once, and the neighbour runs."""
    harness = EngineHarness(num_blocks=(50,), block_size=16, max_model_len=4_096, budget=2_048)
    with pytest.raises(RequestError, match="1002 tokens, the whole KV cache holds 784"):
        harness.add(harness.request("big", [1] * 1_002, 5))
    harness.run(harness.request("small", [1, 2, 3, 4, 5], 5), max_steps=5)
    harness.check_truth()
    assert not harness.kv._keys


def test_request_in_use_may_not_be_added_twice() -> None:
    harness = EngineHarness()
    request = harness.request("r", [1, 2], 4)
    harness.add(request)
    for _ in range(2):
        with pytest.raises(RequestError, match="'r' is in use") as caught:
            harness.engine.add_request(harness.request("r", [3], 2))
        assert caught.value.param == "request_id"
        harness.step()
    harness.run()
    harness.check_truth()


def test_id_of_an_ended_request_may_be_used_again() -> None:
    harness = EngineHarness()
    harness.run(harness.request("r", [1, 2], 4))
    harness.tokens.clear()
    harness.last.clear()
    harness.run(harness.request("r", [5, 6, 7], 4))
    harness.check_truth()


def test_id_of_a_running_request_may_be_used_again_right_after_its_abort() -> None:
    """The executor is told to forget the old one and meets the new one in the same step."""
    harness = EngineHarness()
    harness.add(harness.request("r", [1, 2], 9))
    harness.step()
    harness.engine.abort("r")
    harness.tokens.clear()
    harness.last.clear()
    harness.run(harness.request("r", [5, 6, 7], 4))
    harness.check_truth()


# ---- limits and stops ----


@pytest.mark.parametrize("max_tokens", [1, 2, 7, None])
def test_request_ends_at_its_own_limit_or_the_model_s(max_tokens: int | None) -> None:
    harness = EngineHarness(max_model_len=16)
    harness.run(harness.request("r", range(10), max_tokens))
    assert len(harness.tokens["r"]) == (6 if max_tokens is None else min(6, max_tokens))
    assert harness.reason("r") is FinishReason.LENGTH
    harness.check_truth()


@pytest.mark.parametrize("position", range(8))
def test_stop_token_ends_the_request_wherever_it_falls(position: int) -> None:
    """The same request, with one of the tokens that it is known to yield declared a stop token."""
    plain = EngineHarness()
    plain.run(plain.request("r", [1, 2, 3], 8))
    stop_id = plain.tokens["r"][position]
    harness = EngineHarness()
    harness.run(harness.request("r", [1, 2, 3], 8, stop=[stop_id]))
    assert harness.tokens["r"] == plain.tokens["r"][: position + 1]
    assert (harness.reason("r"), harness.last["r"].stop_reason) == (FinishReason.STOP, stop_id)


def test_stop_token_behind_the_limit_gives_length() -> None:
    plain = EngineHarness()
    plain.run(plain.request("r", [1, 2, 3], 8))
    harness = EngineHarness()
    harness.run(harness.request("r", [1, 2, 3], 4, stop=[plain.tokens["r"][4]]))
    assert (harness.reason("r"), harness.last["r"].stop_reason) == (FinishReason.LENGTH, None)


def test_stop_tokens_are_told_to_the_executor_for_min_tokens() -> None:
    harness = EngineHarness()
    first = harness.model.next_token(harness.model.prefix([1, 2, 3]))
    harness.run(harness.request("r", [1, 2, 3], 8, stop=[first, 7, 3], min_tokens=2))
    harness.check_truth()
    assert harness.tokens["r"][0] == first + 1
    (row,) = harness.executor.plans[0].rows
    assert row.new is not None
    assert row.new.forbidden_stop_ids == tuple(sorted([first, 7, 3]))


# ---- truncate ----


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_truncate_ends_with_stop_and_keeps_the_first_tokens(kept: int) -> None:
    harness = EngineHarness()
    harness.add(harness.request("r", [1, 2, 3], 9), harness.request("other", [4], 9))
    for _ in range(4):
        harness.step()
    request = harness.requests["r"]
    output = harness.engine.truncate("r", kept, "END")
    assert output is not None
    assert (output.token_ids, output.finish_reason, output.stop_reason) == ([], FinishReason.STOP, "END")
    assert request.output_token_ids == harness.tokens["r"][:kept]
    assert harness.engine.truncate("r", 0, "END") is None
    assert harness.engine.stats.num_output_tokens == kept + 4
    harness.run()
    harness.check_truth(but=["r"])


def test_truncate_of_a_preempted_request_and_of_too_many_tokens() -> None:
    harness = EngineHarness(num_blocks=(5,))
    harness.add(harness.request("a", range(7), 9), harness.request("b", range(20, 27), 9))
    while harness.requests["b"].status is not RequestStatus.PREEMPTED:
        harness.step()
    with pytest.raises(AssertionError, match="cut to 9"):
        harness.engine.truncate("b", 9, "END")
    assert harness.engine.truncate("b", 1, "END") is not None
    assert harness.engine.num_waiting == 0
    harness.run()
    harness.check_truth(but=["b"])


# ---- abort ----


def test_abort_of_an_unknown_id_is_ignored() -> None:
    harness = EngineHarness()
    assert harness.engine.abort("nobody") is None
    harness.run(harness.request("r", [1], 3))
    assert harness.engine.abort("r") is None
    harness.check_truth()


@pytest.mark.parametrize("num_steps", range(8))
def test_abort_in_every_state_frees_the_memory_at_once(num_steps: int) -> None:
    """Waiting, in the middle of its prompt, decoding with drafts: and once more, which does nothing."""
    harness = EngineHarness(
        budget=4, drafts=lambda m: oracle_drafts(m, lambda r, n: 2), draft_policy=ChosenDrafts(lambda r, n: 3)
    )
    harness.add(harness.request("r", range(10), 12), harness.request("other", [50, 51], 6))
    for _ in range(num_steps):
        harness.step()
    was_running = harness.requests["r"].status is RequestStatus.RUNNING
    output = harness.engine.abort("r")
    harness.check_blocks()
    if output is None:
        assert harness.reason("r") is not None
    else:
        assert (output.finish_reason, output.token_ids) == (FinishReason.ABORT, [])
        assert harness.requests["r"].status is RequestStatus.FINISHED
        assert "r" not in harness.kv._tables
    assert harness.engine.abort("r") is None
    harness.run()
    harness.check_truth(but=["r"])
    harness.add(harness.request("last", [9], 1))
    harness.step()
    assert harness.executor.request_ids == ["last"], f"the executor must forget r, running: {was_running}"


def test_abort_of_a_preempted_request() -> None:
    harness = EngineHarness(num_blocks=(5,))
    harness.add(harness.request("a", range(7), 9), harness.request("b", range(20, 27), 9))
    while harness.requests["b"].status is not RequestStatus.PREEMPTED:
        harness.step()
    output = harness.engine.abort("b")
    assert output is not None
    assert output.finish_reason is FinishReason.ABORT
    assert harness.engine.abort("b") is None
    assert harness.engine.num_waiting == 0
    harness.run()
    harness.check_truth(but=["b"])


# ---- what policies are told, and counters ----


class Listener(Scheduler):
    """fcfs, with an ear."""

    def __init__(self, context: SchedulerContext) -> None:
        self._inner = build_fcfs(context)
        self.events: list[SchedulerEvent] = []

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        self.events.append(event)
        self._inner.observe(event)


def test_scheduler_is_told_of_arrival_admission_preemption_landing_and_end() -> None:
    harness = EngineHarness(num_blocks=(5,), scheduler=Listener)
    harness.run(harness.request("a", range(7), 6), harness.request("b", range(20, 27), 6))
    harness.check_truth()
    assert isinstance(harness.scheduler, Listener)
    events = harness.scheduler.events
    assert [e.request.request_id for e in events if isinstance(e, RequestArrived)] == ["a", "b"]
    assert [e.request.request_id for e in events if isinstance(e, RequestAdmitted)] == ["a", "b", "b"]
    assert [e.request.request_id for e in events if isinstance(e, RequestPreempted)] == ["b"]
    told = [type(e) for e in events if not isinstance(e, StepLanded) and e.request.request_id == "b"]  # type: ignore[attr-defined]
    assert told == [RequestArrived, RequestAdmitted, RequestPreempted, RequestAdmitted, RequestFinished]
    finished = [(e.request.request_id, e.reason) for e in events if isinstance(e, RequestFinished)]
    assert finished == [("a", FinishReason.LENGTH), ("b", FinishReason.LENGTH)]
    landed = [e for e in events if isinstance(e, StepLanded)]
    assert [e.step_id for e in landed] == list(range(len(harness.executor.plans)))
    assert [e.num_tokens for e in landed] == [plan.num_tokens for plan in harness.executor.plans]
    assert sum(sum(e.num_emitted.values()) for e in landed) == 12
    assert [e.now_s for e in events] == sorted(e.now_s for e in events)


def test_stats_count_each_token_once() -> None:
    harness = EngineHarness(num_blocks=(5,))
    harness.run(harness.request("a", range(7), 6), harness.request("b", range(20, 27), 6))
    stats = harness.engine.stats
    assert (stats.num_prompt_tokens, stats.num_output_tokens, stats.num_finished) == (14, 12, 2)
    assert stats.num_preemptions == harness.requests["b"].num_preemptions == 1
    assert stats.num_steps == len(harness.executor.plans)
    assert stats.num_computed_tokens == sum(plan.num_tokens for plan in harness.executor.plans)
    computed_once = sum(request.num_tokens - 1 for request in harness.requests.values())
    assert stats.num_computed_tokens == computed_once + stats.num_recomputed_tokens
    assert stats.num_recomputed_tokens == harness.requests["b"].num_recomputed_tokens > 0


def test_cached_tokens_are_those_of_the_prompt_at_first_admission() -> None:
    harness = EngineHarness()
    prompt = list(range(17))
    harness.run(harness.request("a", prompt, 3))
    harness.run(harness.request("b", [*prompt[:13], 99], 3))
    harness.check_truth()
    assert (harness.last["a"].num_cached_tokens, harness.last["b"].num_cached_tokens) == (0, 12)
    assert harness.engine.stats.num_cached_tokens == 12
    assert harness.engine.reset_prefix_cache() > 0
    harness.run(harness.request("c", prompt, 3))
    assert harness.last["c"].num_cached_tokens == 0


def test_salt_keeps_requests_apart() -> None:
    harness = EngineHarness()
    for name, salt, expected in (("a", "x", 0), ("b", "x", 16), ("c", "y", 0), ("d", "", 0)):
        harness.run(harness.request(name, range(17), 3, cache_salt=salt))
        assert harness.last[name].num_cached_tokens == expected
    harness.check_truth()


def test_draft_policy_forgets_every_request_that_ended() -> None:
    policy = ChosenDrafts(lambda request, num_running: 2)
    harness = EngineHarness(draft_policy=policy, drafts=lambda m: oracle_drafts(m, lambda r, n: 1))
    harness.add(harness.request("a", [1], 5), harness.request("b", [2], 5), harness.request("c", [3], 5))
    harness.step()
    harness.engine.abort("b")
    harness.engine.truncate("c", 0, "END")
    harness.run()
    assert sorted(policy.forgotten) == ["a", "b", "c"]


def test_closed_engine_refuses_to_step() -> None:
    harness = EngineHarness()
    harness.add(harness.request("r", [1], 3))
    for _ in range(2):
        harness.engine.close()
        assert (harness.executor.is_closed, harness.num_closed) == (True, 1)
        with pytest.raises(EngineDeadError, match="closed"):
            harness.engine.step()
