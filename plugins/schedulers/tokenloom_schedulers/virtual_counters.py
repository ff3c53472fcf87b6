"""Virtual token counters: how much service each tenant had, and who is next.

Source: Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2 (VTC).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import final

from tokenloom.interfaces.scheduler import Ledger, SchedulerView
from tokenloom.interfaces.scheduler_events import (
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    SchedulerEvent,
    StepLanded,
)
from tokenloom.request import RequestView
from tokenloom.scheduling import WaitingOrder

__all__ = ["VirtualCounters"]

_MAX_IDLE = 1_000
"""Tenants without requests whose counters are kept before a look at which of them still matter."""


@final
class _Tenant:
    """One tenant's counter, how many of its requests have not ended, and those that wait."""

    __slots__ = ("counter", "num_live", "queue")

    def __init__(self) -> None:
        self.counter = 0.0
        self.num_live = 0
        self.queue = WaitingOrder[RequestView]()


@final
class VirtualCounters:
    """The state of VTC. A counter grows by a tenant's service divided by its weight.

    A prompt counts when its request is first admitted, less what the prefix cache held of it; output as it is emitted.
    """

    def __init__(self, input_cost: float, output_cost: float, weights: Mapping[str, float]) -> None:
        """Costs per token; a tenant without a weight has weight 1."""
        self._input_cost = input_cost
        self._output_cost = output_cost
        self._weights = weights
        self._tenants: dict[str, _Tenant] = {}
        self._queued: dict[str, _Tenant] = {}
        """Those of whom a request waits, in the order in which they joined the queue."""
        self._owners: dict[str, str] = {}
        """request_id -> tenant."""
        self._ended: dict[str, str] = {}
        """The same of those that ended since the last step landed."""
        self._level = 0.0
        """The least counter of tenants that wait, or that of the last that did."""

    def counter(self, tenant: str) -> float:
        """The service that a tenant had, over its weight; 0 if it is not known."""
        return self._tenants[tenant].counter if tenant in self._tenants else 0.0

    def merge(
        self, waiting: Sequence[RequestView], view: SchedulerView, ledger: Ledger | None = None
    ) -> Iterator[RequestView]:
        """Yields requests in the order in which VTC admits them: the next one of the tenant with the least counter.

        Of those yielded before, the prompts of requests with a grant on the ledger count. Without a ledger, all do.

        Args:
            waiting: in order of arrival; the view's waiting ones, as a rule.
            view: of this step.
            ledger: to be read only.
        """
        # Of equal counters, the tenant that waited longer goes first.
        heap = [
            (self.counter(name), queue[0].arrival_time_s, index, iter(queue))
            for index, (name, queue) in enumerate(self._queues(waiting, view).items())
        ]
        heapify(heap)
        while heap:
            counter, arrival_s, index, queue = heap[0]
            request = next(queue, None)
            if request is None:
                heappop(heap)
                continue
            yield request
            # What is held back for now costs its tenant nothing: it is still that tenant's turn.
            if ledger is None or ledger.is_scheduled(request):
                num_cached = 0 if ledger is None else ledger.cached_tokens(request)
                heapreplace(heap, (counter + self._prompt_cost(request, num_cached), arrival_s, index, queue))

    def observe(self, event: SchedulerEvent) -> None:
        """Follows what happened."""
        if isinstance(event, (RequestArrived, RequestPreempted)):
            self._wait(event.request)
        elif isinstance(event, RequestAdmitted):
            self._start(event.request)
        elif isinstance(event, RequestFinished):
            self._end(event.request)
        elif isinstance(event, StepLanded):
            self._land(event.num_emitted)

    def _queues(self, waiting: Sequence[RequestView], view: SchedulerView) -> Mapping[str, Sequence[RequestView]]:
        """Waiting requests by tenant, in order of arrival. Those that the events have not told of are looked at."""
        if waiting is view.waiting and len(waiting) == sum(len(tenant.queue) for tenant in self._queued.values()):
            return {name: tenant.queue for name, tenant in self._queued.items()}
        queues: dict[str, list[RequestView]] = {}
        for request in waiting:
            queues.setdefault(request.tenant, []).append(request)
        return queues

    def _wait(self, request: RequestView) -> None:
        """A request joins the queue; told of one that waits already, nothing changes."""
        name = request.tenant
        tenant = self._tenants.setdefault(name, _Tenant())
        if request.request_id not in self._owners:
            self._owners[request.request_id] = name
            tenant.num_live += 1
        if name not in self._queued:
            # What a tenant did not ask for while it was away is no credit.
            tenant.counter = max(tenant.counter, self._level)
            if not self._queued:
                self._level = tenant.counter
            self._queued[name] = tenant
        tenant.queue.add(request)

    def _start(self, request: RequestView) -> None:
        tenant = self._tenants[request.tenant]
        tenant.counter += self._prompt_cost(request, request.num_cached_tokens)
        self._leave(request, tenant)

    def _end(self, request: RequestView) -> None:
        """A request ended; what it emitted in the step that is landing is still to be counted."""
        name = self._owners.pop(request.request_id, None)
        if name is not None:
            tenant = self._tenants[name]
            tenant.num_live -= 1
            self._ended[request.request_id] = name
            self._leave(request, tenant)
            tenant.queue.forget(request.request_id)

    def _leave(self, request: RequestView, tenant: _Tenant) -> None:
        """A request leaves the queue, if it waits."""
        if tenant.queue.discard(request) is not None and not tenant.queue:
            del self._queued[request.tenant]
            if not self._queued:
                self._level = max(self._level, tenant.counter)

    def _land(self, num_emitted: Mapping[str, int]) -> None:
        for request_id, count in num_emitted.items():
            payer = self._owners.get(request_id, self._ended.get(request_id))
            if payer is not None:
                self._tenants[payer].counter += self._output_cost * count / self._weights.get(payer, 1.0)
        self._ended.clear()
        if self._queued:
            self._level = min(tenant.counter for tenant in self._queued.values())
        self._forget_idle()

    def _prompt_cost(self, request: RequestView, num_cached: int) -> float:
        """What the admission of a request costs; its prompt was counted if it comes back after a preemption."""
        if request.num_preemptions:
            return 0.0
        num_tokens = max(0, request.num_prompt_tokens - num_cached)
        return self._input_cost * num_tokens / self._weights.get(request.tenant, 1.0)

    def _forget_idle(self) -> None:
        """Drops tenants that would be lifted to the level anyway, once there are many without requests."""
        if len(self._tenants) - len(self._queued) > _MAX_IDLE:
            level = self._level
            self._tenants = {
                name: tenant for name, tenant in self._tenants.items() if tenant.num_live or tenant.counter > level
            }
