"""Random traffic for schedulers: who arrives when, with how much to do, on how little memory, and who is aborted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

from hypothesis import strategies as st

from tokenloom.errors import RequestError
from tokenloom.request import Request
from tokenloom.testing.engine_harness import EngineHarness

__all__ = ["BUSY", "OUTSIDERS", "Arrival", "SaltedId", "Workload", "outsider_request", "play", "workloads"]


@final
@dataclass(frozen=True, slots=True)
class Arrival:
    """A request. `num_shared` tokens of its prompt are those that all requests begin with."""

    step: int
    num_shared: int
    num_own: int
    max_tokens: int
    priority: int = 0
    tenant: str = ""
    abort_after: int | None = None
    """Steps from its arrival to its abort."""


@final
@dataclass(frozen=True, slots=True)
class Workload:
    """Traffic, and the engine that it meets. `num_drafts` drafts, some of them right, follow every token."""

    arrivals: tuple[Arrival, ...]
    num_blocks: int
    block_size: int
    budget: int
    max_num_seqs: int
    num_drafts: int = 0
    cache: str = "hash"


BUSY = (
    *(Arrival(step % 4, 5 * (step % 3), 3 + step, 6 + step % 5, step % 2, "ab"[step % 2]) for step in range(9)),
    Arrival(2, 0, 4, 8, abort_after=3),
)
"""Ten requests, one of them aborted, for an engine without room for all of them."""

OUTSIDERS: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "older": ({}, {}),
    "longer": ({"num_prompt": 9}, {}),
    "shorter": ({}, {"num_prompt": 2}),
    "of_another_tenant": ({"tenant": "quiet"}, {"tenant": "loud"}),
    "less_urgent": ({"priority": 9}, {"priority": 0}),
    "more_urgent": ({"priority": 0}, {"priority": 9}),
    "without_slo": ({}, {"ttft_slo_s": 0.1, "tpot_slo_s": 0.1}),
    "with_slo": ({"ttft_slo_s": 0.1, "tpot_slo_s": 0.1}, {}),
    "less_retained": ({}, {"retention_priority": 9}),
    "more_retained": ({"retention_priority": 9}, {}),
    "retained_for_ever": ({"retention_priority": 1}, {"retention_priority": 1, "retention_ttl_s": 1.0}),
    "without_a_cached_prefix": ({}, {"num_prompt": 17}),
    "retained_for_a_while": ({"retention_priority": 1, "retention_ttl_s": 1.0}, {"retention_priority": 1}),
}
"""What distinguishes one that waits from those that keep coming: fields of its own, and of theirs."""


@final
class SaltedId(str):
    """A request id with a hash of its own, so that sets of equal ids are ordered in another way in another run."""

    _hash: int

    def __new__(cls, text: str, salt: int) -> SaltedId:
        made = super().__new__(cls, text)
        # Not hash(): its own salt differs from process to process, and with it what a suite finds.
        made._hash = int.from_bytes(hashlib.sha256(f"{salt}/{text}".encode()).digest()[:7], "little")
        return made

    def __hash__(self) -> int:
        return self._hash


def workloads() -> st.SearchStrategy[Workload]:
    """Up to ten requests on a few blocks: small enough to shrink well, tight enough to preempt."""
    arrival = st.builds(
        Arrival,
        step=st.integers(0, 8),
        num_shared=st.sampled_from([0, 0, 4, 9]),
        num_own=st.integers(1, 12),
        max_tokens=st.integers(1, 10),
        priority=st.integers(0, 2),
        tenant=st.sampled_from(["", "a", "b"]),
        abort_after=st.none() | st.integers(0, 12),
    )
    return st.builds(
        Workload,
        arrivals=st.lists(arrival, min_size=1, max_size=10).map(tuple),
        num_blocks=st.integers(4, 14),
        block_size=st.sampled_from([1, 2, 4]),
        budget=st.integers(1, 20),
        max_num_seqs=st.integers(1, 6),
        num_drafts=st.sampled_from([0, 0, 3]),
        cache=st.sampled_from(["hash", "none"]),
    )


def play(
    harness: EngineHarness,
    arrivals: tuple[Arrival, ...],
    make_id: Callable[[int], str] = lambda index: f"r{index}",
    max_steps: int = 1_000,
) -> set[str]:
    """Runs traffic to its end, with the harness's checks after every step.

    Returns:
        Ids of the requests that were aborted before their end.
    """
    # Made from the last to the first, so that what depends on where objects lie in memory comes out in another order.
    indices = reversed(range(len(arrivals)))
    requests = {index: _request(harness, make_id(index), index, arrivals[index]) for index in indices}
    aborted: set[str] = set()
    for step in range(max_steps):
        for index, arrival in enumerate(arrivals):
            if arrival.step == step:
                _add(harness, requests[index])
            if arrival.abort_after is not None and arrival.step + arrival.abort_after == step:
                name = requests[index].request_id
                if harness.engine.abort(name) is not None:
                    aborted.add(name)
                assert harness.engine.abort(name) is None, f"{name} was aborted twice"
        if not harness.engine.has_work() and step > max(arrival.step for arrival in arrivals):
            break
        harness.step()
    left = [name for name, request in harness.requests.items() if not request.is_finished]
    assert not left, f"{left} did not end within {max_steps} steps"
    harness.check_idle()
    return aborted


def _add(harness: EngineHarness, request: Request) -> None:
    request.arrival_time_s = harness.clock.now()
    limits = harness.engine.limits
    num_reserved = harness.kv.reserved_blocks(request) * harness.kv.block_size
    is_feasible = max(request.num_prompt_tokens, num_reserved) <= limits.max_kv_tokens
    try:
        harness.add(request)
        assert is_feasible, f"a prompt of {request.num_prompt_tokens} tokens was accepted, {limits}"
    except RequestError:
        assert not is_feasible, f"a prompt of {request.num_prompt_tokens} tokens was refused, {limits}"


def _request(harness: EngineHarness, request_id: str, index: int, arrival: Arrival) -> Request:
    first = 1_000 + 100 * index
    prompt = [*range(arrival.num_shared), *range(first, first + arrival.num_own)]
    request = harness.request(request_id, prompt, arrival.max_tokens)
    request.priority, request.tenant = arrival.priority, arrival.tenant
    return request


def outsider_request(
    harness: EngineHarness, request_id: str, fields: Mapping[str, object], num_output: int = 1
) -> Request:
    """A request; `fields` are of `Request`, or "num_prompt", 1 by default. Prompts begin alike."""
    values = dict(fields)
    num_prompt = values.pop("num_prompt", 1)
    assert isinstance(num_prompt, int), f"num_prompt is {num_prompt!r}"
    request = harness.request(request_id, range(100, 100 + num_prompt), num_output)
    return replace(request, **values)  # type: ignore[arg-type]
