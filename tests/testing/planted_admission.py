"""An admission policy that is right, and the same with one bug planted."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any, Literal, final

from tokenloom.interfaces.contract import PluginInfo
from tokenloom.interfaces.ledger import Ledger
from tokenloom.interfaces.scheduler import SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestArrived, SchedulerEvent
from tokenloom.interfaces.scheduling_policy import AdmissionConfig, AdmissionPolicy
from tokenloom.request import Request, RequestView

__all__ = ["Bug", "PlantedConfig", "admission_info"]

Bug = Literal[
    "none",
    "gives_a_share",
    "goes_below_zero",
    "says_it_never_refuses",
    "draws_at_random",
    "reads_the_clock",
    "order_of_a_set",
    "sorts_in_place",
    "lowers_a_priority",
    "takes_blocks",
    "remembers_questions",
    "remembers_requests",
    "counts_heads",
    "wants_the_impossible",
    "fails_when_full",
]


def admission_info() -> PluginInfo:
    """The declaration of the policy below."""
    return PluginInfo("scheduler.admission", "planted", "tests.testing.planted_admission:PlantedConfig", (1, 0), "")


class PlantedConfig(AdmissionConfig):
    """Settings of the policy below."""

    bug: Bug = "none"

    def build(self, context: SchedulerContext) -> AdmissionPolicy:
        return Planted(self.bug)


@final
class Planted(AdmissionPolicy):
    """Keeps a block free for each request that runs beside the one that starts."""

    def __init__(self, bug: Bug) -> None:
        self._bug = bug
        self._kept: list[str] = []

    @property
    def can_refuse(self) -> bool:
        return self._bug != "says_it_never_refuses"

    def num_missing_blocks(
        self, request: RequestView, others: Sequence[RequestView], view: SchedulerView, ledger: Ledger
    ) -> int:
        missing = max(0, len(others) - ledger.spare_blocks)
        if self._bug == "remembers_questions":
            self._kept.append(request.request_id)
        if self._bug == "lowers_a_priority":
            assert isinstance(request, Request)
            request.priority += 1
        if self._bug == "sorts_in_place" and isinstance(others, list):
            others.sort(key=lambda other: other.num_tokens)
        if self._bug == "takes_blocks" and ledger.is_scheduled(others[0]):
            ledger.preempt(others[0])
        answers: dict[str, Any] = {
            "gives_a_share": missing / 2,
            "goes_below_zero": len(others) - ledger.spare_blocks,
            "says_it_never_refuses": 1,
            "draws_at_random": random.randrange(2),
            "reads_the_clock": int(time.time()) % 2,
            "order_of_a_set": len(next(iter({*(other.request_id for other in others)}))) + _first(others),
            "counts_heads": int(len(others) >= 4),
            "wants_the_impossible": 1,
        }
        if self._bug == "fails_when_full" and ledger.spare_blocks == 0:
            raise ZeroDivisionError("nothing is spare")
        answer: int = answers.get(self._bug, missing)
        return answer

    def observe(self, event: SchedulerEvent) -> None:
        if self._bug == "remembers_requests" and isinstance(event, RequestArrived):
            self._kept.append(event.request.request_id)


def _first(others: Sequence[RequestView]) -> int:
    """Tokens of the request whose id comes first in a set."""
    name = next(iter({other.request_id for other in others}))
    return next(other.num_tokens for other in others if other.request_id == name)
