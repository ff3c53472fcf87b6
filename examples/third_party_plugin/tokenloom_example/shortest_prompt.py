"""Scheduler `shortest_prompt`: whoever has the least prompt left goes first, and waiting counts.

Short prompts first lowers the mean time to the first token, but alone it lets a long prompt wait for ever while short
ones keep coming. So every second of waiting makes up for some tokens of length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, final

from pydantic import Field
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerConfig, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, VictimPolicy
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler

__all__ = ["ShortestPromptConfig", "ShortestPromptPolicy"]


@final
class ShortestPromptConfig(SchedulerConfig):
    """Settings of the shortest_prompt scheduler; the limits that the core enforces come from the base class."""

    # 0 is refused: without ageing, a long prompt may starve.
    ageing_tokens_per_s: Annotated[float, Field(gt=0.0)] = Field(
        default=512.0,
        description="Prompt tokens that one second of waiting makes up for; a large value comes close to fcfs.",
    )
    victim: PluginChoice = Field(description="Whom to preempt when KV blocks run out.")

    def build(self, context: SchedulerContext) -> Scheduler:
        # The core has validated the nested plugin by its own Config; it is built like any other.
        return PolicyScheduler(ShortestPromptPolicy(self.ageing_tokens_per_s, self.victim.build(context)))


@final
class ShortestPromptPolicy(SchedulingPolicy):
    """Answers the four questions of a policy; `PolicyScheduler` keeps the books."""

    def __init__(self, ageing_tokens_per_s: float, victims: VictimPolicy) -> None:
        self._ageing_tokens_per_s = ageing_tokens_per_s
        self._victims = victims

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        # sorted() is stable, so equal requests keep the view's order and equal views give equal plans.
        return sorted(requests, key=self._turn)

    def admit(self, request: RequestView, view: SchedulerView, ledger: Ledger) -> bool:
        return True

    def chunk(self, request: RequestView, need: int, view: SchedulerView, ledger: Ledger) -> int:
        return min(need, ledger.remaining_tokens)

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return self._victims.select(request, candidates, view)

    def observe(self, event: SchedulerEvent) -> None:
        """Keeps no state: the turn of a request follows from the request alone."""

    def _turn(self, request: RequestView) -> tuple[bool, float]:
        """Sort key; the smallest goes first.

        Requests that generate come before prompts: each takes few tokens of the step, and a stall would be felt as a
        gap between tokens. The rest is ranked by `remaining - rate * (now - arrival)`. `now` is the same for all, so it
        is left out, and two requests change places only when one of them is computed further.
        """
        is_prompt = request.num_computed_tokens < request.num_prompt_tokens
        # A preempted request starts from nothing: its output so far is computed again like a prompt.
        remaining = request.num_tokens - request.num_computed_tokens - request.num_inflight_tokens
        return is_prompt, remaining + self._ageing_tokens_per_s * request.arrival_time_s
