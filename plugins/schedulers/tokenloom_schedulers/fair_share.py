"""Equal service for tenants: the next request is one of the tenant that was served least."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import (
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    SchedulerEvent,
    StepLanded,
)
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, StepLimits, VictimPolicy
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler
from tokenloom_schedulers.prefill_settings import PrefillSettings
from tokenloom_schedulers.virtual_counters import VirtualCounters

__all__ = ["FairShareConfig", "FairSharePolicy"]

Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FairShareConfig(PrefillSettings):
    """Settings of the fair_share scheduler."""

    weights: dict[str, Weight] = Field(
        default_factory=dict, description="Shares of tenants, by name: 2 gets twice as much as 1, which is the default."
    )
    input_cost: Weight = Field(default=1.0, description="Service that a prompt token stands for.")
    output_cost: Weight = Field(default=2.0, description="Service that an output token stands for.")
    victim: PluginChoice = Field(description="Whom to preempt when KV blocks run out.")

    def build(self, context: SchedulerContext) -> Scheduler:
        return PolicyScheduler(FairSharePolicy(self, self.victim.build(context)), self.admission.build(context))


@final
class FairSharePolicy(SchedulingPolicy):
    """Virtual token counters (VTC): a tenant's counter grows with its service over its weight; the least goes next.

    Service is input_cost * prompt tokens, counted when a request is admitted, plus output_cost * output tokens. Prompt
    tokens from the prefix cache, and those computed again after preemption, cost nothing. A tenant that comes back to
    the queue is lifted to the least counter there, so that idle time is no credit. Within a tenant: order of arrival.

    Guarantee: while two tenants of weight 1 have requests waiting, their services in any interval differ by at most
    2 * max(input_cost * longest prompt, output_cost * most tokens that run at once). The engine idles for nobody.

    Bound on waiting: each time the others had so much more service than a tenant, its first request is next.

    Source: Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.
    """

    def __init__(self, config: FairShareConfig, victims: VictimPolicy) -> None:
        self._limits = config.step_limits()
        self._victims = victims
        self._config = config
        self._counters = VirtualCounters(self._prompt_cost, self._output_cost)

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        return requests if requests is view.running else self._counters.merge(requests)

    def step_limits(self, view: SchedulerView) -> StepLimits:
        return self._limits

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return self._victims.select(request, candidates, view)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestArrived):
            self._counters.arrive(event.request)
        elif isinstance(event, RequestPreempted):
            self._counters.come_back(event.request)
        elif isinstance(event, RequestFinished):
            self._counters.end(event.request)
        elif isinstance(event, StepLanded):
            self._counters.land(event)

    def _prompt_cost(self, request: RequestView) -> float:
        num_tokens = request.num_prompt_tokens - request.num_cached_tokens
        return self._config.input_cost * num_tokens / self._config.weights.get(request.tenant, 1.0)

    def _output_cost(self, tenant: str) -> float:
        return self._config.output_cost / self._config.weights.get(tenant, 1.0)
