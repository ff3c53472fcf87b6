"""First come, first served within budgets that adapt: steps stay short enough for a target per output token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import SchedulerEvent, StepLanded
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, StepLimits, VictimPolicy
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler
from tokenloom_schedulers.prefill_settings import Count, PrefillSettings
from tokenloom_schedulers.step_time import StepTime
from tokenloom_schedulers.tokens_left import num_tokens_left

__all__ = ["SloAdaptiveConfig", "SloAdaptivePolicy"]


class SloAdaptiveConfig(PrefillSettings):
    """Settings of the slo_adaptive scheduler."""

    target_tpot_s: Annotated[float, Field(gt=0)] = Field(
        default=0.1, description="Target for the time of a step, and so per output token, in seconds."
    )
    quantile: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.99, description="Share of the steps that keep to the target."
    )
    initial_tokens: Count = Field(
        default=64, description="Token budget of the first step; later ones follow by themselves."
    )
    min_prefill_tokens: Count = Field(
        default=16, description="Prompt tokens that a step may have even if the target leaves none, or prompts starve."
    )
    victim: PluginChoice = Field(description="Whom to preempt when KV blocks run out.")

    def build(self, context: SchedulerContext) -> Scheduler:
        policy = SloAdaptivePolicy(self, self.victim.build(context), context)
        return PolicyScheduler(policy, self.admission.build(context))


@final
class SloAdaptivePolicy(SchedulingPolicy):
    """Keeps the given quantile of step times under a target, by two budgets.

    The token budget is what fits the target by a straight line through (tokens, seconds) of past steps, with the share
    on top by which steps take longer at `quantile`. It shrinks at once, and grows at most to the double per step, and
    only where the last step used half of it or more: what was not tried is not known. A single slow step hardly counts,
    three in a row are how things are from then on (`StepTime`).

    Requests with one token to compute go first and are never left out, however small the budget: it is never below the
    number of requests that run. Prompts get what they leave of it, and `min_prefill_tokens` at least. Where blocks
    lack, those that came later make room, whatever they compute. Nobody is admitted while as many requests run as the
    budget has tokens, so that decoding alone keeps to the target, too.

    A target below the time of a step with `min_prefill_tokens` cannot be met. max_num_batched_tokens and max_num_seqs
    stay the upper limits. Bound on waiting: order of arrival, as fcfs.
    """

    def __init__(self, config: SloAdaptiveConfig, victims: VictimPolicy, context: SchedulerContext) -> None:
        self._config = config
        self._limits = config.step_limits()
        self._victims = victims
        self._most = context.max_num_batched_tokens
        self._budget = min(config.initial_tokens, self._most)
        self._step_time = StepTime()

    @property
    def token_budget(self) -> int:
        """Tokens that the next step should not exceed, where no more requests run than that."""
        return self._budget

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        return requests

    def sequence(self, view: SchedulerView, ledger: Ledger) -> Iterable[RequestView]:
        yield from sorted(view.running, key=lambda request: num_tokens_left(request) > 1)
        yield from view.waiting

    def step_limits(self, view: SchedulerView) -> StepLimits:
        budget = max(self._budget, len(view.running))
        num_decoding = sum(1 + request.num_drafts for request in view.running if num_tokens_left(request) == 1)
        prefill = max(self._config.min_prefill_tokens, budget - num_decoding)
        if self._limits.max_prefill_tokens is not None:
            prefill = min(prefill, self._limits.max_prefill_tokens)
        return replace(self._limits, max_prefill_tokens=prefill, max_num_seqs=budget)

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return self._victims.select(request, candidates, view)

    def observe(self, event: SchedulerEvent) -> None:
        if not isinstance(event, StepLanded):
            return
        self._step_time.observe(event.num_tokens, event.duration_s)
        target_s = self._config.target_tpot_s / (1.0 + self._step_time.error(self._config.quantile))
        fitting = max(1.0, min(self._step_time.num_tokens_within(target_s), self._most))
        if fitting < self._budget:
            self._budget = int(fitting)
        elif 2 * event.num_tokens >= self._budget:
            self._budget = int(min(fitting, 2 * self._budget))
