"""How long a request of the stress test may wait, by what its scheduler states."""

from __future__ import annotations

from collections.abc import Mapping

from tokenloom.interfaces.contract import PluginConfig
from tokenloom.testing.stress_case import StressCase
from tokenloom.testing.stress_traffic import StressRequest

__all__ = ["wait_bounds"]

_IN_LINE = frozenset({"fcfs", "slo_adaptive", "static_batch"})
"""Schedulers that state order of arrival."""
_AGEING = frozenset({"sjf", "deadline", "prefix_affinity"})
"""Schedulers that state order of arrival for those that waited longer than `max_wait_s`."""
_MOST_LEVELS = 2
"""Between the most and the least urgent priority of the traffic."""


def wait_bounds(case: StressCase, coming: Mapping[str, StressRequest]) -> dict[str, int]:
    """By request, how many steps it may take; empty where the scheduler states no bound.

    A policy states who may be served before a request. Were all of them served one after the other, a token a step,
    it would still end by then.
    """
    bounds = {name: _wait_bound(case, coming, asked) for name, asked in coming.items()}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _wait_bound(case: StressCase, coming: Mapping[str, StressRequest], asked: StressRequest) -> int | None:
    scheduler = case.combination.scheduler
    if scheduler == "fair_share":
        return _fair_share_bound(case, coming, asked)
    lead_s = _lead_s(case.scheduler, scheduler)
    if lead_s is None:
        return None
    return int(lead_s) + sum(_length(other) for other in coming.values() if other.step <= asked.step + lead_s)


def _lead_s(config: PluginConfig, name: str) -> float | None:
    """How much later than a request others may arrive and still pass it; None if nothing is stated. A step is 1 s."""
    values = dict(config)
    if name in _IN_LINE:
        return 0.0
    if name == "priority":
        return None if values["ageing_s"] is None else _MOST_LEVELS * float(values["ageing_s"])
    return None if name not in _AGEING or values["max_wait_s"] is None else float(values["max_wait_s"])


def _fair_share_bound(case: StressCase, coming: Mapping[str, StressRequest], asked: StressRequest) -> int:
    """Each other tenant gets at most as much service as this one up to the request, and the gap that is stated."""
    values, tenant = dict(case.scheduler), asked.fields["tenant"]
    input_cost, output_cost = float(values["input_cost"]), float(values["output_cost"])
    own = [other for other in coming.values() if other.fields["tenant"] == tenant and other.step <= asked.step]
    num_others = len({other.fields["tenant"] for other in coming.values()} - {tenant})
    most_to_come = case.scheduler.max_num_seqs * max(other.max_tokens for other in coming.values())
    gap = 2 * (input_cost * case.max_model_len + output_cost * most_to_come)
    service = sum(input_cost * len(other.prompt) + output_cost * other.max_tokens for other in own)
    return int(sum(map(_length, own)) + num_others * (service + gap) / min(input_cost, output_cost))


def _length(asked: StressRequest) -> int:
    return len(asked.prompt) + asked.max_tokens
