"""A scheduler for tests: fcfs that also preempts chosen requests when they have a chosen number of output tokens."""

from __future__ import annotations

from typing import Annotated, final

from pydantic import Field, PrivateAttr

from tokenloom.batch import SchedulePlan
from tokenloom.interfaces.contract import PluginInfo
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerConfig, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestArrived, RequestPreempted, SchedulerEvent
from tokenloom.plugins import hookimpl
from tokenloom.scheduling import PolicyScheduler
from tokenloom_schedulers.fcfs import FcfsConfig, FcfsPolicy
from tokenloom_schedulers.last_in import LastIn

__all__ = ["PreemptingConfig", "tokenloom_plugins"]


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the plugins under test conditions only."""
    return [
        PluginInfo("scheduler", "preempting", "tests.e2e.preempting_scheduler:PreemptingConfig", (1, 0), "For tests."),
        PluginInfo("scheduler", "forcing", "tests.e2e.forcing_scheduler:ForcingConfig", (1, 0), "For tests."),
    ]


class PreemptingConfig(SchedulerConfig):
    """Settings of the scheduler below, which notes each preemption in `log`."""

    max_chunk_tokens: int | None = None
    stride: Annotated[int, Field(ge=1)] = 1
    _log: list[tuple[str, int]] = PrivateAttr(default_factory=list)

    @property
    def log(self) -> list[tuple[str, int]]:
        """(request id, output length) of every preemption so far."""
        return self._log

    def build(self, context: SchedulerContext) -> Scheduler:
        return Preempting(self)


@final
class Preempting(Scheduler):
    """Preempts every request but the first once at each output length that is a multiple of `stride`.

    The first one stays, and after it the last one left, or a step might schedule nothing.
    """

    def __init__(self, config: PreemptingConfig) -> None:
        # Only the chunk size of this config is read by the policy.
        policy = FcfsPolicy(FcfsConfig.model_construct(max_chunk_tokens=config.max_chunk_tokens), LastIn())
        self._inner = PolicyScheduler(policy)
        self._stride = config.stride
        self._log = config.log
        self._first: str | None = None

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        for request in view.running:
            length = request.num_output_tokens
            is_due = length > 0 and length % self._stride == 0 and request.request_id != self._first
            if (
                is_due
                and (request.request_id, length) not in self._log
                and ledger.num_preempted + 1 < len(view.running)
            ):
                ledger.preempt(request, ledger.preempt_mode(request))
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        self._inner.observe(event)
        if isinstance(event, RequestPreempted):
            self._log.append((event.request.request_id, event.request.num_output_tokens))
        elif isinstance(event, RequestArrived) and self._first is None:
            self._first = event.request.request_id
