"""EngineLoop over a scripted link: what is taken when, who is told what, and what a failure costs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, final

import pytest

from tests.core.engine_process.served_stub import IDLE_S, INFO, ScriptedLink, of_kind, stub_served, submission
from tokenloom.batch import SchedulePlan
from tokenloom.engine_output import EngineOutput
from tokenloom.engine_process import submissions as submissions_module
from tokenloom.engine_process.engine_loop import EngineLoop
from tokenloom.engine_process.fault import Fault
from tokenloom.engine_process.heartbeat import Heartbeat, period_s
from tokenloom.engine_process.loop_observer import LoopObserver
from tokenloom.engine_process.messages import (
    Abort,
    Call,
    EngineInfo,
    Failed,
    FrontEndGone,
    Hello,
    Outputs,
    Refused,
    Reply,
    Stop,
    ToEngine,
    Truncate,
)
from tokenloom.engine_process.operations import Operations
from tokenloom.errors import CONTEXT_LENGTH_EXCEEDED, EngineDeadError, PluginContractError, RequestError
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.interfaces.contract import PluginChoice, PluginConfig
from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestFinished, SchedulerEvent
from tokenloom.request import FinishReason, Request
from tokenloom.testing.engine_harness import EngineHarness, build_fcfs


def run(harness: EngineHarness, *turns: list[tuple[str, ToEngine]], **options: Any) -> ScriptedLink:
    link = ScriptedLink(*turns)
    EngineLoop(stub_served(harness), link, **options).run()
    assert link.is_closed
    return link


def tokens_of(link: ScriptedLink, front_end: str | None = None) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for message in of_kind(link, Outputs, front_end):
        for output in message.outputs:
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
    return tokens


def ends_of(link: ScriptedLink) -> dict[str, FinishReason]:
    outputs = [output for message in of_kind(link, Outputs) for output in message.outputs]
    return {output.request_id: output.finish_reason for output in outputs if output.finish_reason is not None}


def test_a_step_takes_all_that_has_arrived_and_sends_each_front_end_one_message() -> None:
    harness = EngineHarness()
    arrived: list[tuple[str, ToEngine]] = [
        ("x", submission("a")),
        ("y", submission("b")),
        ("x", submission("c", max_tokens=2)),
    ]
    link = run(harness, arrived)
    assert {name: len(ids) for name, ids in tokens_of(link).items()} == {"a": 4, "b": 4, "c": 2}
    assert set(tokens_of(link, "x")) == {"a", "c"}
    assert set(tokens_of(link, "y")) == {"b"}
    news = [(turn, front_end) for turn, front_end, message in link.sent if isinstance(message, Outputs)]
    assert news == [(turn, name) for turn in range(1, 5) for name in ("x", "y")]
    harness.check_idle()


def test_a_loop_waits_only_when_it_has_nothing_to_do() -> None:
    link = run(EngineHarness(), [("x", submission("a", max_tokens=3))])
    assert link.timeouts == [IDLE_S, 0.0, 0.0, IDLE_S]


def test_hello_is_answered_with_what_the_engine_says_of_itself() -> None:
    link = run(EngineHarness(), [("x", Hello())])
    assert link.sent == [(1, "x", INFO)]
    assert of_kind(link, EngineInfo) == [INFO]


def test_choices_are_called_by_their_index_and_interleave() -> None:
    link = run(EngineHarness(), [("x", submission("a", n=3))])
    assert list(tokens_of(link)) == ["a-0", "a-1", "a-2"]
    assert all(len(ids) == 4 for ids in tokens_of(link).values())


def test_of_several_choices_all_run_or_none() -> None:
    harness = EngineHarness(max_num_seqs=2, max_queued=(1, None))
    link = run(harness, [("x", submission("a", n=2)), ("x", submission("b", n=2))])
    assert set(tokens_of(link)) == {"a-0", "a-1"}
    (refused,) = of_kind(link, Refused)
    assert (refused.request_id, refused.fault.kind) == ("b", "overloaded")
    harness.check_idle()


def test_what_can_never_run_is_refused_with_the_field_at_fault() -> None:
    link = run(EngineHarness(), [("x", submission("a", [99_999])), ("x", submission("b"))])
    (refused,) = of_kind(link, Refused)
    assert (refused.request_id, refused.fault.kind, refused.fault.param) == ("a", "request", "prompt")
    assert set(tokens_of(link)) == {"b"}


def test_a_refusal_bears_the_code_of_its_error() -> None:
    link = run(EngineHarness(), [("x", submission("a", [1] * 500))])
    (refused,) = of_kind(link, Refused)
    assert (refused.fault.kind, refused.fault.code) == ("request", CONTEXT_LENGTH_EXCEEDED)


def test_a_request_id_in_use_is_refused_and_the_first_one_goes_on() -> None:
    link = run(EngineHarness(), [("x", submission("a")), ("y", submission("a"))])
    assert [(name, message.fault.param) for _, name, message in link.sent if isinstance(message, Refused)] == [
        ("y", "request_id")
    ]
    assert len(tokens_of(link, "x")["a"]) == 4


def test_an_abort_holds_before_the_next_step_and_may_be_repeated() -> None:
    harness = EngineHarness()
    link = run(
        harness,
        [("x", submission("a", max_tokens=50, n=2)), ("x", submission("b"))],
        [("x", Abort(["a", "a", "never"]))],
        [("x", Abort(["a"]))],
    )
    assert {turn for turn, _, m in link.sent if isinstance(m, Outputs) and m.outputs[0].request_id == "a-0"} == {1}
    assert len(tokens_of(link)["b"]) == 4
    harness.check_idle()


def test_an_id_belongs_to_the_front_end_that_brought_it() -> None:
    link = run(EngineHarness(), [("x", submission("a"))], [("y", Abort(["a"])), ("y", Truncate("a", 1, "stop"))])
    assert len(tokens_of(link)["a"]) == 4


def test_a_choice_cut_at_a_stop_string_ends_alone() -> None:
    harness = EngineHarness()
    link = run(
        harness,
        [("x", submission("a", n=2))],
        [],
        [("x", Truncate("a-0", 1, "stop")), ("x", Truncate("a-0", 1, "stop")), ("x", Truncate("never", 0, ""))],
    )
    assert {name: len(ids) for name, ids in tokens_of(link).items()} == {"a-0": 2, "a-1": 4}
    assert harness.engine.stats.num_output_tokens == 5
    harness.check_idle()


def test_a_cut_that_cannot_be_ends_its_choice_and_nobody_elses() -> None:
    harness = EngineHarness()
    link = run(harness, [("x", submission("a", max_tokens=50)), ("x", submission("b"))], [("x", Truncate("a", 99, ""))])
    assert {name: len(ids) for name, ids in tokens_of(link).items()} == {"a": 1, "b": 4}
    harness.check_idle()


def test_the_requests_of_a_front_end_that_is_gone_are_aborted() -> None:
    harness = EngineHarness()
    turns: list[list[tuple[str, ToEngine]]] = [
        [("x", Hello()), ("y", Hello()), ("x", submission("a", max_tokens=50)), ("y", submission("b"))],
        [("supervisor", FrontEndGone("x"))],
    ]
    link = run(harness, *turns)
    assert len(tokens_of(link)["a"]) == 1
    assert len(tokens_of(link)["b"]) == 4
    harness.check_idle()


@pytest.mark.parametrize(
    "late", [Hello(), submission("a"), submission("a", grammar="a"), Call(1, "ping"), Abort(["b"])], ids=repr
)
def test_what_comes_late_from_a_front_end_that_is_gone_is_dropped(late: ToEngine) -> None:
    harness = EngineHarness()
    link = run(harness, [("x", Hello())], [("supervisor", FrontEndGone("x"))], [("x", late)], [("y", submission("b"))])
    assert {name for _, name, message in link.sent if not isinstance(message, EngineInfo)} == {"y"}
    assert len(of_kind(link, EngineInfo)) == 1
    assert harness.engine.stats.num_output_tokens == 4


def test_a_submission_that_breaks_the_factory_costs_nobody_else_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = EngineHarness()
    served, link = stub_served(harness), ScriptedLink([("x", submission("a")), ("x", submission("b"))])
    make = served.factory.make

    def failing(prompt: list[int], *rest: Any, request_id: str, **options: Any) -> list[Request]:
        if request_id == "a":
            raise ZeroDivisionError("of ours")
        return make(prompt, *rest, request_id=request_id, **options)

    monkeypatch.setattr(type(served.factory), "make", staticmethod(failing))
    EngineLoop(served, link).run()
    (refused,) = of_kind(link, Refused)
    assert refused == Refused("a", Fault("internal", "ZeroDivisionError: of ours"))
    assert len(tokens_of(link)["b"]) == 4


# ---- failures ----


@final
class Misplanning(Scheduler):
    """fcfs that makes an illegal plan in one step; or, instead of a plan, an exception in mid-step."""

    def __init__(self, context: SchedulerContext, at_step: int) -> None:
        self._inner = build_fcfs(context)
        self._at_step = at_step

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        return SchedulePlan({"nobody": 1}) if view.step_id == self._at_step else self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        self._inner.observe(event)


class FcfsChoice(PluginConfig):
    """Builds fcfs whatever the context."""

    def build(self, context: SchedulerContext) -> Scheduler:
        return build_fcfs(context)


@pytest.mark.parametrize("has_fallback", [False, True])
def test_an_illegal_plan_fails_the_live_requests_and_the_engine_goes_on(has_fallback: bool) -> None:
    harness = EngineHarness(scheduler=lambda context: Misplanning(context, 2))
    first: list[tuple[str, ToEngine]] = [("x", submission("a", max_tokens=9)), ("y", submission("b", max_tokens=9))]
    link = run(
        harness,
        first,
        [],
        [],
        [("x", submission("c"))],
        fallback=PluginChoice("scheduler", "fcfs", FcfsChoice()) if has_fallback else None,
    )
    # Nothing of the plan was carried out, so its step is planned again: a scheduler that repeats itself fails again.
    ends = {"a": FinishReason.ERROR, "b": FinishReason.ERROR, "c": FinishReason.LENGTH}
    assert ends_of(link) == (ends if has_fallback else ends | {"c": FinishReason.ERROR})
    errors = [o.error for message in of_kind(link, Outputs, "y") for o in message.outputs if o.error]
    assert len(errors) == 1
    assert "requests of its view" in errors[0]
    harness.check_idle()


def test_a_dead_engine_is_told_to_every_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = EngineHarness()
    link = ScriptedLink([("x", Hello()), ("y", Hello()), ("x", submission("a", max_tokens=50))])

    def failing(plan: object) -> None:
        raise OSError("device lost")

    monkeypatch.setattr(harness.executor, "launch", failing)
    with pytest.raises(EngineDeadError, match="device lost"):
        EngineLoop(stub_served(harness), link).run()
    told = [(name, message.message) for _, name, message in link.sent if isinstance(message, Failed)]
    assert [name for name, _ in told] == ["x", "y"]
    assert all("device lost" in message for _, message in told)
    assert link.is_closed


@final
class Misobserving(Scheduler):
    """fcfs that fails when it hears that a request has ended."""

    def __init__(self, context: SchedulerContext) -> None:
        self._inner = build_fcfs(context)

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        assert not isinstance(event, RequestFinished), "no end is foreseen"
        self._inner.observe(event)


@pytest.mark.parametrize(
    "end", [Abort(["a"]), Truncate("a", 1, "stop"), FrontEndGone("x")], ids=lambda m: type(m).__name__
)
def test_a_scheduler_that_fails_to_hear_of_an_end_ends_the_engine(end: ToEngine) -> None:
    harness = EngineHarness(scheduler=Misobserving)
    link = ScriptedLink([("x", submission("a", max_tokens=50)), ("y", Hello())], [("x", end)])
    with pytest.raises(EngineDeadError, match="no end is foreseen"):
        EngineLoop(stub_served(harness), link).run()
    (failed,) = of_kind(link, Failed, "y")
    assert "observe() takes every event" in failed.message


# ---- calls ----


def call(operation: str, **arguments: Any) -> Reply:
    link = run(EngineHarness(), [("x", submission("a")), ("x", Call(7, operation, arguments))])
    (reply,) = of_kind(link, Reply)
    assert reply.call_id == 7
    return reply


def test_ping_is_answered() -> None:
    assert call("ping") == Reply(7, "pong")


def test_stats_hold_counters_queues_and_blocks() -> None:
    result = call("stats").result
    assert (result["running"], result["waiting"], result["num_prompt_tokens"]) == (0, 1, 3)
    assert result["kv_usage"] == {"null": 1, "free": 63, "active": 0, "cached": 0, "in_transfer": 0}


def test_the_kv_map_shows_every_block_or_so_many_cells() -> None:
    assert call("kv_map").result == ["n" + 63 * "f"]
    assert call("kv_map", max_cells=8).result == [8 * "f"]


def test_an_operation_that_fails_or_is_unknown_is_answered_with_its_error() -> None:
    assert call("kv_map", max_cells=0).fault == Fault("request", "max_cells=0 must be a whole number >= 1", "max_cells")
    assert "no operation 'fly', only kv_map, ping" in str(call("fly").fault)


def test_the_prefix_cache_can_be_reset() -> None:
    reset = Call(1, "reset_prefix_cache")
    link = run(EngineHarness(), [("x", submission("a", range(20)))], [], [], [], [], [("x", reset)])
    assert of_kind(link, Reply)[0].result == 5


# ---- grammars ----


class AnyToken(LogitsConstraint):
    """Allows everything."""

    def allowed_mask(self, out: Any) -> None:
        out.fill_(True)

    def fork(self) -> LogitsConstraint:
        return self

    def advance(self, token_id: int) -> bool:
        return True

    def rollback(self, num_tokens: int) -> None:
        pass

    @property
    def is_terminated(self) -> bool:
        return False


def run_grammars(
    compile_spec: Callable[[GrammarSpec], LogitsConstraint], *turns: list[tuple[str, ToEngine]]
) -> tuple[ScriptedLink, list[Request], EngineHarness]:
    harness, seen = EngineHarness(), Recorder()
    link = ScriptedLink(*turns)
    EngineLoop(stub_served(harness, compile_spec), link, observers=[seen]).run()
    return link, seen.requests, harness


def test_a_grammar_is_compiled_into_the_requests_constraint() -> None:
    link, requests, _ = run_grammars(lambda spec: AnyToken(), [("x", submission("a", n=2, grammar="a+"))])
    assert [type(request.constraint) for request in requests] == [AnyToken, AnyToken]
    assert set(tokens_of(link)) == {"a-0", "a-1"}


def test_a_grammar_that_is_none_is_refused_by_the_field_that_holds_it() -> None:
    def refuse(spec: GrammarSpec) -> LogitsConstraint:
        raise RequestError(f"{spec.text} is no regex")

    link, _, _ = run_grammars(refuse, [("x", submission("a", grammar="(")), ("x", submission("b"))])
    assert of_kind(link, Refused) == [Refused("a", Fault("request", "( is no regex", "response_format"))]
    assert len(tokens_of(link)["b"]) == 4


def test_streams_go_on_while_a_grammar_compiles() -> None:
    is_done = threading.Event()

    def slow(spec: GrammarSpec) -> LogitsConstraint:
        assert is_done.wait(10.0)
        return AnyToken()

    def release(turn: int) -> None:
        if turn == 6:
            is_done.set()

    link = ScriptedLink([("x", submission("a", grammar="a")), ("x", submission("b"))], on_turn=release)
    EngineLoop(stub_served(EngineHarness(), slow), link).run()
    first = {name: min(t for t, _, m in link.sent if isinstance(m, Outputs) and name in _ids(m)) for name in "ab"}
    assert first["b"] == 1
    assert first["a"] > 5
    assert 0.0 not in link.timeouts[5:6], "with nothing else to do, it waits"
    assert link.timeouts[5] < IDLE_S, "it looks for the grammar now and then"


def test_steps_wait_for_no_grammar_that_is_compiled_behind_another(monkeypatch: pytest.MonkeyPatch) -> None:
    is_done, waited = threading.Event(), list[int]()

    def slow(spec: GrammarSpec) -> LogitsConstraint:
        assert is_done.wait(10.0)
        return AnyToken()

    def count(futures: Sequence[Future[LogitsConstraint]], timeout: float) -> None:
        waited.append(len(futures))
        wait(futures, timeout)

    def release(turn: int) -> None:
        if turn == 6:
            is_done.set()

    monkeypatch.setattr(submissions_module, "wait", count)
    turns: list[list[tuple[str, ToEngine]]]
    turns = [[("x", submission(f"{turn}{i}", grammar=f"{turn}{i}")) for i in range(3)] for turn in range(5)]
    link = ScriptedLink(*turns, on_turn=release)
    EngineLoop(stub_served(EngineHarness(), slow), link).run()
    assert waited == [3], "once, for all that came while nothing was being compiled"
    assert len(tokens_of(link)) == 15


def test_an_abort_reaches_a_submission_whose_grammar_compiles() -> None:
    is_done = threading.Event()

    def slow(spec: GrammarSpec) -> LogitsConstraint:
        assert is_done.wait(10.0)
        return AnyToken()

    link = ScriptedLink([("x", submission("a", grammar="a"))], [("x", Abort(["a"]))])
    harness = EngineHarness()
    EngineLoop(stub_served(harness, slow), link).run()
    is_done.set()
    assert link.sent == []
    assert harness.engine.stats.num_prompt_tokens == 0


def test_grammars_of_clients_that_have_left_are_not_compiled() -> None:
    is_done, begun = threading.Event(), list[str]()

    def slow(spec: GrammarSpec) -> LogitsConstraint:
        begun.append(spec.text)
        assert is_done.wait(10.0)
        return AnyToken()

    def release(turn: int) -> None:
        if turn == 4:
            is_done.set()

    waiting = [("x", submission(name, n=2, grammar=name)) for name in "abc"]
    turns: list[list[tuple[str, ToEngine]]] = [[*waiting, ("y", submission("d", grammar="d"))]]
    turns += [[("x", Abort(["b"]))], [("y", FrontEndGone("y"))]]
    link = ScriptedLink(*turns, on_turn=release)
    EngineLoop(stub_served(EngineHarness(), slow), link).run()
    assert begun == ["a", "c"]
    assert set(tokens_of(link)) == {"a-0", "a-1", "c-0", "c-1"}


# ---- what others hear ----


@final
class Recorder(LoopObserver):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.requests: list[Request] = []

    def accepted(self, requests: Sequence[Request]) -> None:
        self.requests += requests
        self.heard.append(f"accepted {len(requests)}")

    def refused(self, refused: Refused) -> None:
        self.heard.append(f"refused {refused.request_id} {refused.fault.kind}")

    def stepped(self, outputs: Sequence[EngineOutput]) -> None:
        self.heard.append(f"stepped {' '.join(output.request_id for output in outputs)}")

    def ended(self, output: EngineOutput) -> None:
        self.heard.append(f"ended {output.request_id} {output.finish_reason}")

    def plan_failed(self, error: PluginContractError) -> None:
        self.heard.append(f"plan failed {error.plugin}")

    def operations(self) -> Operations:
        def shout(arguments: Mapping[str, Any]) -> str:
            return str(arguments["word"]).upper()

        return {"shout": shout}


def test_an_observer_hears_of_everything_in_order_and_answers_its_own_calls() -> None:
    seen = Recorder()
    link = run(
        EngineHarness(scheduler=lambda context: Misplanning(context, 2)),
        [("x", submission("a", n=2, max_tokens=9)), ("x", submission("b", [])), ("x", Call(1, "shout", {"word": "x"}))],
        [("x", Truncate("a-0", 1, "stop"))],
        observers=[seen],
    )
    assert seen.heard == [
        "accepted 2",
        "refused b request",
        "stepped a-0 a-1",
        "ended a-0 stop",
        "stepped a-1",
        "plan failed scheduler=test",
        "ended a-1 error",
    ]
    assert of_kind(link, Reply) == [Reply(1, "X")]


def test_the_heart_beats_every_turn_whether_there_is_work_or_not() -> None:
    cell, heard = [0.0], list[bool]()
    heartbeat = Heartbeat(cell, period_s=0.25)

    def listen(turn: int) -> None:
        heard.append(cell[0] > 0.0)
        heartbeat.clear()

    link = ScriptedLink([("x", submission("a", max_tokens=2))], [], [], [], [("", Stop())], on_turn=listen)
    EngineLoop(stub_served(EngineHarness()), link, heartbeat=heartbeat).run()
    assert heard == [False, True, True, True, True]
    assert link.timeouts == [0.25, 0.0, 0.25, 0.25, 0.25]


def test_a_heartbeat_tells_its_age() -> None:
    cell = [0.0]
    heartbeat = Heartbeat(cell)
    assert heartbeat.age_s() == 0.0, "there was none yet"
    cell[0] = 1e-9
    assert heartbeat.age_s() > 0.0


@pytest.mark.parametrize(("timeout_s", "expected_s"), [(None, 1.0), (300.0, 1.0), (2.0, 0.5), (0.04, 0.01)])
def test_an_idle_engine_beats_often_enough_for_any_limit(timeout_s: float | None, expected_s: float) -> None:
    assert period_s(timeout_s) == expected_s


def _ids(message: Outputs) -> list[str]:
    return [output.request_id for output in message.outputs]
