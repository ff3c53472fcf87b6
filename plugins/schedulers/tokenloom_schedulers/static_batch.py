"""The classical baseline: a batch is admitted, and nobody joins until its last request has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import final

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestAdmitted, RequestArrived, RequestFinished, SchedulerEvent
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, StepLimits, VictimPolicy
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler
from tokenloom_schedulers.prefill_settings import PrefillSettings

__all__ = ["StaticBatchConfig", "StaticBatchPolicy"]


class StaticBatchConfig(PrefillSettings):
    """Settings of the static_batch scheduler. `max_num_seqs` is the size of a batch."""

    victim: PluginChoice = Field(description="Whom to preempt when KV blocks run out.")

    def build(self, context: SchedulerContext) -> Scheduler:
        policy = StaticBatchPolicy(self, self.victim.build(context), context.max_num_seqs)
        return PolicyScheduler(policy, self.admission.build(context))


@final
class StaticBatchPolicy(SchedulingPolicy):
    """Batches of the first max_num_seqs requests to arrive of those that wait when the last batch has ended, or of all
    if they are fewer.

    Who belongs to a batch is settled when its first member starts. Members start in order of arrival as tokens and
    blocks allow, over several steps if need be; one that lets others pass, since it waits for a prefix or
    `max_long_partial_prefills` holds it back, is only passed by members. A slot whose request has ended stays empty.
    It optimises nothing: it is what continuous batching is compared with.

    Bound on waiting: a request waits for the batches of those that arrived before it, each as long as its longest
    member.
    """

    def __init__(self, config: StaticBatchConfig, victims: VictimPolicy, batch_size: int) -> None:
        self._limits = config.step_limits()
        self._victims = victims
        self._batch_size = batch_size
        self._live: dict[str, None] = {}
        """Requests that have not ended, in order of arrival."""
        self._members: set[str] = set()
        """Those of the batch that have not ended."""
        self._has_begun = False
        """Whether the batch has started, so that nobody joins it any more."""

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        return requests

    def admit(self, request: RequestView, view: SchedulerView, ledger: Ledger) -> bool:
        # Of requests whose arrival it was not told, those that wait together are a batch.
        return request.request_id in self._members if self._live else not view.running

    def step_limits(self, view: SchedulerView) -> StepLimits:
        return self._limits

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return self._victims.select(request, candidates, view)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestArrived):
            self._live[event.request.request_id] = None
            self._gather()
        elif isinstance(event, RequestAdmitted):
            self._has_begun = True
        elif isinstance(event, RequestFinished):
            self._live.pop(event.request.request_id, None)
            self._members.discard(event.request.request_id)
            self._has_begun = self._has_begun and bool(self._members)
            self._gather()

    def _gather(self) -> None:
        """The next batch is the first to arrive, until it begins."""
        if not self._has_begun and len(self._members) < self._batch_size:
            self._members.update(islice(self._live, self._batch_size))
