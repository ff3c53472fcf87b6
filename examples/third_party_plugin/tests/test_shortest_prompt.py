"""Whose turn it is, as a function of what is left, of waiting, and of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

import pytest
from tokenloom.interfaces.scheduler import SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduling_policy import VictimPolicy
from tokenloom.request import Request, RequestView
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing import SchedulerSuite

from tokenloom_example.shortest_prompt import ShortestPromptPolicy

LIMITS = SchedulerContext(
    max_num_seqs=8, max_num_batched_tokens=256, max_model_len=4096, block_size=16, num_usable_blocks=100
)


class TestShortestPrompt(SchedulerSuite):
    """The rules that every scheduler keeps: budget, progress, no starvation, and more."""

    plugin = "shortest_prompt"


class TestShortestPromptThatHardlyAges(SchedulerSuite):
    """A token per second, of which a step of the suite takes one: the longest of its prompts still has its turn."""

    plugin = "shortest_prompt"
    settings: ClassVar = {"ageing_tokens_per_s": 1.0}


@final
class FirstVictim(VictimPolicy):
    """A stand-in for the nested plugin."""

    def select(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return candidates[0]


def make_request(name: str, num_prompt: int, *, arrival_s: float = 0.0, computed: int = 0, output: int = 0) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=[1] * num_prompt,
        params=SamplingParams(),
        seed=0,
        max_total_tokens=4096,
        arrival_time_s=arrival_s,
        num_computed_tokens=computed,
        output_token_ids=[2] * output,
    )


def order(requests: Sequence[Request], rate: float = 100.0, now_s: float = 0.0) -> list[str]:
    policy = ShortestPromptPolicy(rate, FirstVictim())
    view = SchedulerView(step_id=0, now_s=now_s, waiting=requests, running=(), limits=LIMITS)
    return [request.request_id for request in policy.order(requests, view)]


def test_order_starts_with_the_shortest_prompt() -> None:
    assert order([make_request("long", 300), make_request("short", 10), make_request("middle", 50)]) == [
        "short",
        "middle",
        "long",
    ]


def test_order_counts_what_is_left_of_a_prompt() -> None:
    assert order([make_request("whole", 100), make_request("nearly_done", 300, computed=290)])[0] == "nearly_done"


def test_order_counts_the_output_of_a_preempted_request() -> None:
    assert order([make_request("preempted", 10, output=60), make_request("new", 40)]) == ["new", "preempted"]


def test_order_keeps_generating_requests_ahead_of_prompts() -> None:
    generating = make_request("generating", 50, computed=50, output=1, arrival_s=9.0)
    assert order([make_request("tiny", 2), generating]) == ["generating", "tiny"]


def test_order_keeps_arrival_among_equals() -> None:
    names = ["c", "a", "b"]
    assert order([make_request(name, 20) for name in names]) == names


@pytest.mark.parametrize(("wait_s", "first"), [(2.9, "newcomer"), (3.1, "waiter")])
def test_order_lets_waiting_make_up_for_length(wait_s: float, first: str) -> None:
    # 310 tokens at 100 tokens/s: three seconds of waiting equal the 300 tokens that the newcomer is shorter by.
    requests = [make_request("waiter", 310), make_request("newcomer", 10, arrival_s=wait_s)]
    assert order(requests, now_s=wait_s)[0] == first


def test_a_long_prompt_is_first_after_a_bounded_wait() -> None:
    long = make_request("long", 1000)
    newcomers = [make_request(f"short{tick}", 5, arrival_s=tick / 10) for tick in range(200)]
    turn = order([long, *newcomers], rate=100.0).index("long")
    # All of those that arrived in its first 995 / 100 seconds, and none that came later.
    assert turn == 100


def test_victims_are_chosen_by_the_nested_plugin() -> None:
    policy = ShortestPromptPolicy(1.0, FirstVictim())
    one, other = make_request("one", 5, computed=5), make_request("other", 5, computed=5)
    view = SchedulerView(step_id=0, now_s=0.0, waiting=(), running=(one, other), limits=LIMITS)
    assert policy.select_victim(other, [one, other], view) is one
