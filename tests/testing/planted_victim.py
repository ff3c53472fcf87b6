"""A victim policy that is right, and the same with one bug planted."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, final

from tokenloom.interfaces.contract import PluginInfo
from tokenloom.interfaces.scheduler import SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduling_policy import VictimConfig, VictimPolicy
from tokenloom.request import Request, RequestView

__all__ = ["Bug", "PlantedConfig", "victim_info"]

Bug = Literal[
    "none",
    "returns_a_copy",
    "fails_on_equals",
    "draws_at_random",
    "order_of_a_set",
    "sorts_in_place",
    "lowers_a_priority",
    "remembers_calls",
    "takes_nobody",
    "reads_the_clock",
]


def victim_info() -> PluginInfo:
    """The declaration of the policy below."""
    return PluginInfo("scheduler.victim", "planted", "tests.testing.planted_victim:PlantedConfig", (1, 0), "")


class PlantedConfig(VictimConfig):
    """Settings of the policy below."""

    bug: Bug = "none"

    def build(self, context: SchedulerContext) -> VictimPolicy:
        return Planted(self.bug)


@final
class Planted(VictimPolicy):
    """Preempts whoever has the least computed tokens, of these the one admitted last."""

    def __init__(self, bug: Bug) -> None:
        self._bug = bug
        self._calls: list[str] = []

    def select(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        costs = [candidate.num_computed_tokens for candidate in candidates]
        if self._bug == "fails_on_equals" and len(set(costs)) == 1 < len(costs):
            raise RuntimeError("all alike")
        if self._bug == "remembers_calls":
            self._calls.append(request.request_id)
        if self._bug == "sorts_in_place" and isinstance(candidates, list):
            candidates.sort(key=lambda candidate: candidate.num_computed_tokens)
        if self._bug == "takes_nobody":
            return None
        if self._bug == "reads_the_clock":
            return candidates[int(time.time()) % len(candidates)]
        if self._bug == "draws_at_random":
            return random.choice(candidates)
        if self._bug == "order_of_a_set":
            return {candidate.request_id: candidate for candidate in candidates}[
                next(iter({candidate.request_id for candidate in candidates}))
            ]
        victim = min(reversed(candidates), key=lambda candidate: candidate.num_computed_tokens)
        assert isinstance(victim, Request)
        if self._bug == "lowers_a_priority":
            victim.priority += 1
        return replace(victim) if self._bug == "returns_a_copy" else victim
