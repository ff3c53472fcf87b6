"""sjf: the least work first, unless somebody has waited long for how short it is, or longer than max_wait_s."""

from __future__ import annotations

from tests.plugins.schedulers.scheduling import ask, build, first_steps, harness_with
from tokenloom.interfaces.scheduler_events import RequestArrived, RequestFinished, StepLanded
from tokenloom.request import FinishReason, RequestStatus
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import EngineHarness
from tokenloom.testing.stub_model import stub_request
from tokenloom_schedulers.output_estimate import OutputEstimate


def sjf(estimate: str = "cap", max_wait_s: float | None = 1e9, **engine: int) -> EngineHarness:
    return harness_with("sjf", {"estimate": estimate, "max_wait_s": max_wait_s}, **{"max_num_seqs": 1, **engine})


def test_least_prompt_and_output_comes_first() -> None:
    harness = sjf()
    ask(harness, "long_output", 2, 20)
    ask(harness, "long_prompt", 19, 2)
    ask(harness, "short", 4, 4)
    ask(harness, "middle", 8, 8)
    harness.run()
    assert list(first_steps(harness)) == ["short", "middle", "long_prompt", "long_output"]


def test_running_request_is_not_preempted_for_a_shorter_one() -> None:
    harness = sjf()
    long = ask(harness, "long", 2, 40)
    harness.step()
    for index in range(5):
        ask(harness, f"short{index}", 1, 1)
        harness.step()
    assert long.num_output_tokens == 6
    harness.run()
    assert harness.engine.stats.num_preemptions == 0


def test_response_ratio_lets_a_long_request_pass_shorter_ones_that_came_later() -> None:
    """Work of 30 that waited 20 has a ratio of 21/30; 10 that waited 5 has 6/10, and 10 that waited 7, 8/10."""
    for waited, first in ((5, "long"), (7, "short")):
        harness = sjf()
        ask(harness, "occupant", 1, 20)
        harness.step()
        ask(harness, "long", 20, 10)
        for _ in range(19 - waited):
            harness.step()
        ask(harness, "short", 5, 5)
        harness.run()
        assert list(first_steps(harness))[1] == first, (waited, first_steps(harness))


def test_waiting_is_counted_in_tokens_that_were_computed() -> None:
    """110 tokens for 30 of work, against 10 for 5; in steps it would be two against one."""
    desk = Desk((40,))
    long, short = desk.wait("long", range(20)), desk.wait("short", range(100, 104))
    long.max_total_tokens, short.max_total_tokens = 30, 5
    scheduler = build("sjf", desk.limits)
    for request, num_tokens in ((long, 100), (short, 10)):
        scheduler.observe(RequestArrived(0.0, request))
        scheduler.observe(StepLanded(0.0, 0, 1.0, num_tokens, {}))
    assert list(scheduler.schedule(desk.view(), desk.ledger()).num_scheduled_tokens) == ["long", "short"]


def test_request_older_than_max_wait_s_goes_first() -> None:
    for max_wait_s, is_first in ((12.0, True), (60.0, False), (None, False)):
        harness = sjf(max_wait_s=max_wait_s)
        ask(harness, "occupant", 1, 15)
        harness.step()
        ask(harness, "longest", 60, 60)
        for index in range(6):
            harness.step()
            ask(harness, f"short{index}", 1, 1)
        harness.run()
        order = list(first_steps(harness))
        assert (order[1] == "longest") is is_first, order


def test_outputs_are_predicted_from_those_of_the_tenant() -> None:
    """The cap says 40 for both; chat ends after 3 tokens, and reports never do."""
    harness = sjf(estimate="tenant_mean")
    for tenant, count in (("chat", 3), ("report", 40)):
        ask(harness, f"{tenant}_before", 4, count, tenant=tenant)
    harness.run()
    ask(harness, "report_now", 4, 40, tenant="report")
    ask(harness, "chat_now", 6, 40, tenant="chat")
    harness.run()
    assert list(first_steps(harness))[2:] == ["chat_now", "report_now"]


def finished(tenant: str, num_output: int, reason: FinishReason = FinishReason.STOP) -> RequestFinished:
    request = stub_request("x", [1], status=RequestStatus.FINISHED)
    request.tenant, request.output_token_ids = tenant, [0] * num_output
    return RequestFinished(0.0, request, reason)


def test_estimate_is_a_mean_within_what_is_possible() -> None:
    estimate = OutputEstimate("tenant_mean")
    request = stub_request("r", [1, 2, 3])
    request.tenant, request.max_total_tokens = "a", 103
    assert estimate.num_left(request) == 100
    for count in (10, 20, 30):
        estimate.observe(finished("a", count))
    estimate.observe(finished("a", 1_000, FinishReason.ABORT))
    estimate.observe(finished("b", 1_000))
    assert estimate.num_left(request) == 20
    request.output_token_ids = [0] * 5
    assert estimate.num_left(request) == 15
    request.output_token_ids = [0] * 60
    assert estimate.num_left(request) == 1
    request.tenant = "b"
    assert estimate.num_left(request) == 40


def test_estimate_follows_a_change_and_keeps_no_more_than_a_thousand_tenants() -> None:
    estimate = OutputEstimate("tenant_mean")
    request = stub_request("r", [1])
    request.tenant, request.max_total_tokens = "t0", 10_000
    for count in [10] * 500 + [100] * 200:
        estimate.observe(finished("t0", count))
    assert 95 < estimate.num_left(request) < 100
    for index in range(1, 1_001):
        estimate.observe(finished(f"t{index}", 5))
    assert estimate.num_left(request) == 9_999, "the least recently seen tenant is forgotten"
