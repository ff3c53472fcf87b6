"""RequestFactory: names and arrival times that the caller brings."""

from __future__ import annotations

from typing import Any

import pytest

from tokenloom.clock import VirtualClock
from tokenloom.errors import RequestError
from tokenloom.feasibility import RequestLimits
from tokenloom.request_factory import RequestFactory, RequestTraits
from tokenloom.sampling_params import SamplingParams

LIMITS = RequestLimits(max_model_len=50, max_kv_tokens=100, vocab_size=10)


def factory(now_s: float = 5.0) -> RequestFactory:
    return RequestFactory(LIMITS, (), 0, VirtualClock(now_s))


def test_requests_are_numbered_unless_the_caller_names_them() -> None:
    made = factory()
    (first,), (named,), (third,) = (
        made.make([1], SamplingParams()),
        made.make([1], SamplingParams(), request_id="mine"),
        made.make([1], SamplingParams()),
    )
    assert [request.request_id for request in (first, named, third)] == ["req-0", "mine", "req-2"]
    assert len({request.seed for request in (first, named, third)}) == 3


def test_choices_bear_the_name_with_their_index_and_share_it_as_a_set() -> None:
    made = factory().make([1], SamplingParams(n=2), request_id="mine")
    assert [(request.request_id, request.choice_set) for request in made] == [("mine-0", "mine"), ("mine-1", "mine")]


def test_arrival_is_now_or_when_the_caller_says_but_never_later_than_now() -> None:
    made = factory(5.0)
    times = [made.make([1], SamplingParams(), arrival_s=time_s)[0].arrival_time_s for time_s in (None, 3.0, 9.0)]
    assert times == [5.0, 3.0, 5.0]


def test_a_request_never_grows_beyond_the_least_limit() -> None:
    made = factory()
    longest = [made.make([1, 2], SamplingParams(max_tokens=n))[0].max_total_tokens for n in (3, 1000, None)]
    assert longest == [5, 50, 50]


SECONDS = ("ttft_slo_s", "tpot_slo_s", "retention_ttl_s")
INTEGERS = ("priority", "retention_priority")
NO_NUMBERS: tuple[Any, ...] = (float("nan"), float("inf"), -float("inf"), "1", True, [1], 1j)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in SECONDS for value in (*NO_NUMBERS, 0, -1.0, 1.1e9, 10**400)),
        *((name, value) for name in INTEGERS for value in (*NO_NUMBERS, None, 0.0, 2**31, -(2**31), -(10**400))),
        *((name, value) for name in ("tenant", "cache_salt") for value in (None, 1, b"a", "\ud800")),
        ("constraint", "a+"),
    ],
)
def test_traits_refuse_what_no_scheduler_could_reckon_with(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name} must be .*, got .*; try ") as caught:
        RequestTraits(**{name: value})
    assert caught.value.param == name


def test_traits_within_their_limits_are_kept() -> None:
    largest = {**dict.fromkeys(SECONDS, 1e9), **dict.fromkeys(INTEGERS, 2**31 - 1)}
    least = {**dict.fromkeys(SECONDS, 1e-9), **dict.fromkeys(INTEGERS, 1 - 2**31)}
    for values in (largest, least, dict.fromkeys(SECONDS, 1)):
        traits = RequestTraits(tenant="t", cache_salt="s", **values)
        (request,) = factory().make([1], SamplingParams(), traits)
        assert {name: getattr(request, name) for name in values} == values
