"""The queue's limits: who is refused, when room is there again, and that a call is taken whole or not at all."""

from __future__ import annotations

import pickle

import pytest

from tests.core.test_engine_failures import DeafScheduler
from tokenloom.errors import OverloadedError, PluginContractError, RequestError
from tokenloom.request import Request
from tokenloom.testing.engine_harness import EngineHarness, PreemptAt, build_fcfs


def harness_of(max_requests: int | None = None, max_tokens: int | None = None, max_num_seqs: int = 1) -> EngineHarness:
    return EngineHarness(max_num_seqs=max_num_seqs, max_queued=(max_requests, max_tokens))


def requests(harness: EngineHarness, names: str, num_tokens: int = 3, max_tokens: int = 4) -> list[Request]:
    return [
        harness.request(name, range(100 * index, 100 * index + num_tokens), max_tokens)
        for index, name in enumerate(names)
    ]


def test_one_more_than_may_wait_is_refused_and_changes_nothing() -> None:
    harness = harness_of(max_requests=2)
    a, b, c, d = requests(harness, "abcd")
    harness.add(a, b, c)  # one of them will take the free slot
    with pytest.raises(OverloadedError, match=r"3 requests wait, 1 more exceed scheduler\.max_queued_requests=2") as it:
        harness.engine.add_request(d)
    assert (it.value.resource, it.value.limit, it.value.current, it.value.retry_after_s) == ("requests", 2, 3, None)
    assert harness.engine.num_waiting == 3
    assert harness.engine.stats.num_prompt_tokens == 9
    harness.run()
    harness.check_truth()


def test_only_prompt_tokens_that_wait_count() -> None:
    harness = harness_of(max_tokens=10)
    a, b, c = requests(harness, "abc", num_tokens=5)
    harness.add(a, b)
    assert harness.engine.num_running == 0
    with pytest.raises(OverloadedError, match="10 prompt tokens wait, 5 more") as refused:
        harness.engine.add_request(c)
    assert (refused.value.resource, refused.value.current) == ("tokens", 10)
    harness.step()
    harness.add(c)
    harness.run()
    harness.check_truth()


def test_there_is_room_again_when_one_starts_or_ends() -> None:
    harness = harness_of(max_requests=1)
    a, b, c = requests(harness, "abc")
    harness.add(a)
    harness.step()
    harness.add(b)
    with pytest.raises(OverloadedError):
        harness.engine.add_request(c)
    harness.engine.abort("b")
    harness.add(c)
    with pytest.raises(OverloadedError):
        harness.engine.add_request(requests(harness, "abcd")[3])


def test_a_preempted_request_takes_no_place_in_the_queue() -> None:
    harness = EngineHarness(
        max_num_seqs=2, max_queued=(1, None), scheduler=lambda context: PreemptAt(build_fcfs(context), {"a": [2]})
    )
    a, b, c = requests(harness, "abc", max_tokens=8)
    harness.add(a)
    harness.step()
    harness.add(b)
    while not a.num_preemptions:
        harness.step()
    harness.add(c)
    harness.run()
    harness.check_truth()


def test_a_call_is_taken_whole_or_not_at_all() -> None:
    harness = harness_of(max_requests=4)
    a, b, *others = requests(harness, "abcd")
    harness.add(a, b)
    with pytest.raises(OverloadedError, match="4 more exceed"):
        harness.engine.add_requests([*others, harness.request("x", [1]), harness.request("y", [1])])
    assert harness.engine.num_waiting == 2
    with pytest.raises(RequestError, match="in use"):  # told of at the second one
        harness.engine.add_requests([harness.request("e", [1, 2]), a])
    assert harness.engine.num_waiting == 2, "the first of them stayed in the engine"
    harness.add(others[0])


def test_what_is_more_than_the_limit_alone_is_no_matter_of_waiting() -> None:
    """Trying again would never help."""
    harness = harness_of(max_requests=2)
    with pytest.raises(RequestError, match=r"4 requests at once never fit .*max_num_seqs=1 .*max_queued_requests=2"):
        harness.engine.add_requests(requests(harness, "abcd"))
    harness.engine.add_requests(requests(harness, "abc"))


def test_what_free_slots_will_take_does_not_queue() -> None:
    harness = harness_of(max_requests=0, max_tokens=0, max_num_seqs=2)
    a, b, c = requests(harness, "abc", num_tokens=50)
    harness.engine.add_requests([a, b])
    with pytest.raises(OverloadedError, match="max_queued_requests=0"):
        harness.engine.add_request(c)
    harness.step()
    harness.engine.abort("a")
    harness.engine.add_request(c)


def test_an_infeasible_request_is_told_so_though_the_queue_is_full() -> None:
    harness = harness_of(max_requests=0)
    harness.add(harness.request("a", [1]))
    with pytest.raises(RequestError, match="max_model_len"):
        harness.engine.add_request(harness.request("b", range(500), None))


def test_a_scheduler_that_fails_to_hear_of_an_arrival_leaves_no_place_taken() -> None:
    harness = EngineHarness(
        max_num_seqs=1, max_queued=(0, None), scheduler=lambda context: DeafScheduler(context, "RequestArrived")
    )
    with pytest.raises(PluginContractError):
        harness.engine.add_request(harness.request("a", [1]))
    harness.add(harness.request("b", [1]))
    with pytest.raises(OverloadedError):
        harness.engine.add_request(harness.request("c", [1]))


def test_the_error_survives_a_process_border() -> None:
    error = OverloadedError("full", resource="tokens", limit=5, current=4, retry_after_s=1.5)
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, OverloadedError)
    assert (str(copy), copy.resource, copy.limit, copy.current, copy.retry_after_s) == ("full", "tokens", 5, 4, 1.5)
