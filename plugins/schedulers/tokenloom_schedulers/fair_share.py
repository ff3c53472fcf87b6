"""Equal service for tenants: the next request is one of the tenant that was served least."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, StepLimits, VictimPolicy
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler
from tokenloom_schedulers.prefill_settings import PrefillSettings
from tokenloom_schedulers.virtual_counters import VirtualCounters

__all__ = ["FairShareConfig", "FairSharePolicy"]

Weight = Annotated[float, Field(gt=0)]


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

    Guarantee: while two tenants of weight 1 have requests waiting that could start, their services in any interval
    differ by at most 2 * (input_cost * longest prompt + output_cost * most output still to come), the latter summed
    over the requests of a tenant that run at once: no more than max_num_seqs whole outputs. The engine idles for
    nobody. A request could not start while `max_long_partial_prefills` holds it back, or another one computes the
    prefix that it waits for; those of its tenant that could go first, and only then other tenants' do.

    Bound on waiting: each time the others had so much more service than a tenant, its first request that could start is
    next.

    Source: Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.
    """

    def __init__(self, config: FairShareConfig, victims: VictimPolicy) -> None:
        self._limits = config.step_limits()
        self._victims = victims
        self._counters = VirtualCounters(config.input_cost, config.output_cost, config.weights)

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        return requests if requests is view.running else self._counters.merge(requests, view)

    def sequence(self, view: SchedulerView, ledger: Ledger) -> Iterator[RequestView]:
        yield from view.running
        yield from self._counters.merge(view.waiting, view, ledger)

    def step_limits(self, view: SchedulerView) -> StepLimits:
        return self._limits

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return self._victims.select(request, candidates, view)

    def observe(self, event: SchedulerEvent) -> None:
        self._counters.observe(event)
