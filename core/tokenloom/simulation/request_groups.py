"""What requests of each tenant, of each priority and with each sort of targets got, where a workload mixes them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from tokenloom.bench.latency import percentiles
from tokenloom.engine_output import EngineOutput
from tokenloom.simulation.measurements import Completed, SloTargets
from tokenloom.simulation.service_gap import OUTPUT_COST, ServiceGap
from tokenloom.simulation.timed_request import TimedRequest

__all__ = ["GROUPINGS", "STRICT", "RequestGroups"]

STRICT, RELAXED = "strict", "relaxed"

GROUPINGS: Mapping[str, Callable[[TimedRequest], str]] = {
    "by_tenant": lambda request: request.tenant,
    "by_priority": lambda request: str(request.priority),
    "by_targets": lambda request: STRICT if request.slo_factor == 1.0 else RELAXED,
}
"""Name in results -> what a request belongs to."""


@dataclass(slots=True)
class _Group:
    """The requests that have one thing in common."""

    num_requests: int = 0
    num_in_time: int = 0
    service: float = 0.0
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    tpot_s: array[float] = field(default_factory=lambda: array("d"))


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    tenant: str
    groups: Sequence[_Group]
    num_prompt_tokens: int
    has_begun: bool = False


@final
class RequestGroups:
    """Takes an engine's outputs. Service is prompt tokens that were computed (once) and two for each output token."""

    def __init__(self, requests: Sequence[TimedRequest], targets: SloTargets) -> None:
        """`requests`: the workload; only what differs among them is looked at."""
        self._targets = targets
        self._relaxed = max((request.slo_factor for request in requests), default=1.0)
        self._groups: dict[str, dict[str, _Group]] = {}
        for name, member_of in GROUPINGS.items():
            members = sorted({member_of(request) for request in requests}, key=_natural)
            if len(members) > 1:
                self._groups[name] = {member: _Group() for member in members}
        self._open: dict[str, _Open] = {}
        self._gap = ServiceGap()

    def add(self, request_id: str, request: TimedRequest) -> None:
        """A request arrives; also one that is going to be rejected."""
        if not self._groups:
            return
        groups = [members[GROUPINGS[name](request)] for name, members in self._groups.items()]
        for group in groups:
            group.num_requests += 1
        self._open[request_id] = _Open(request.tenant, groups, request.num_prompt_tokens)
        self._gap.wait(request.tenant)

    def reject(self, request_id: str) -> None:
        """A request never began."""
        if self._groups:
            self._gap.begin(self._open.pop(request_id).tenant)

    def take(self, output: EngineOutput, completed: Completed | None) -> None:
        """Takes the news of one request; `completed` if it came to its end."""
        if not self._groups:
            return
        request = self._open[output.request_id]
        service = OUTPUT_COST * len(output.token_ids)
        begins = not request.has_begun and (bool(output.token_ids) or output.finish_reason is not None)
        if begins and output.token_ids:
            service += request.num_prompt_tokens - output.num_cached_tokens
        self._gap.serve(request.tenant, service)
        if begins:
            request.has_begun = True
            self._gap.begin(request.tenant)
        for group in request.groups:
            group.service += service
            if completed is not None:
                group.num_in_time += completed.is_in_time
                group.ttft_s.append(completed.ttft_s)
                if completed.tpot_s is not None:
                    group.tpot_s.append(completed.tpot_s)
        if output.finish_reason is not None:
            del self._open[output.request_id]

    def end_step(self) -> None:
        """All news of a step were taken."""
        if "by_tenant" in self._groups:
            self._gap.measure()

    def summary(self) -> dict[str, Any]:
        """Figures of each group under the names of `GROUPINGS`, and `fairness` with several tenants.

        Empty where all requests are alike.
        """
        figures: dict[str, Any] = {
            name: {member: _figures(group) for member, group in members.items()}
            for name, members in self._groups.items()
        }
        for member, found in figures.get("by_targets", {}).items():
            factor = 1.0 if member == STRICT else self._relaxed
            found["slo"] = {"ttft_s": self._targets.ttft_s * factor, "tpot_s": self._targets.tpot_s * factor}
        if "by_tenant" in figures:
            worst = [tenant["ttft_s"]["p99"] for tenant in figures["by_tenant"].values()]
            figures["fairness"] = {
                "service_gap": self._gap.largest,
                "worst_ttft_p99_s": max((value for value in worst if value is not None), default=None),
            }
        return figures


def _figures(group: _Group) -> dict[str, Any]:
    return {
        "num_requests": group.num_requests,
        "num_completed": len(group.ttft_s),
        "service": group.service,
        "num_met": group.num_in_time,
        "share_met": group.num_in_time / group.num_requests if group.num_requests else 0.0,
        "ttft_s": percentiles(group.ttft_s),
        "tpot_s": percentiles(group.tpot_s),
    }


def _natural(name: str) -> tuple[int, str]:
    """tenant-2 before tenant-10."""
    return len(name), name
