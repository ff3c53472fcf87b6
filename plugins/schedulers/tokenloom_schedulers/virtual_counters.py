"""Virtual token counters: how much service each tenant had, and who is next.

Source: Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2 (VTC).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import final

from tokenloom.interfaces.scheduler_events import StepLanded
from tokenloom.request import RequestStatus, RequestView

__all__ = ["VirtualCounters"]

_MAX_IDLE = 1_000
"""Tenants without requests whose counters are kept before a look at which of them still matter."""


@final
class _Tenant:
    """One tenant's counter, and its requests that wait: (arrival time, rank, tie-break, request, is it new)."""

    __slots__ = ("counter", "num_live", "queue")

    def __init__(self) -> None:
        self.counter = 0.0
        self.num_live = 0
        self.queue: list[tuple[float, int, int, RequestView, bool]] = []


@final
class VirtualCounters:
    """The state of VTC. A counter grows by a tenant's service divided by its weight."""

    def __init__(self, prompt_cost: Callable[[RequestView], float], output_cost: Callable[[str], float]) -> None:
        """Costs in units of service: of a request's prompt, and of one output token of a tenant; weights included."""
        self._prompt_cost = prompt_cost
        self._output_cost = output_cost
        self._tenants: dict[str, _Tenant] = {}
        self._queued: dict[str, _Tenant] = {}
        self._owners: dict[str, tuple[str, int]] = {}
        """request_id -> (tenant, rank of arrival)."""
        self._ended: dict[str, str] = {}
        """request_id -> tenant of those that ended since the last step landed."""
        self._num_pushed = 0
        self._level = 0.0
        """The least counter of tenants that wait, or that of the last that did."""

    def counter(self, tenant: str) -> float:
        """The service that a tenant had, over its weight; 0 if it is not known."""
        return self._tenants[tenant].counter if tenant in self._tenants else 0.0

    def merge(self, waiting: Iterable[RequestView]) -> Iterator[RequestView]:
        """Yields requests in the order in which VTC admits them: the next one of the tenant with the least counter.

        Each prompt counts from the moment at which it is yielded.
        """
        queues: dict[str, list[RequestView]] = {}
        for request in waiting:
            queues.setdefault(request.tenant, []).append(request)
        heap = [(self.counter(tenant), index, iter(queue)) for index, (tenant, queue) in enumerate(queues.items())]
        heapify(heap)
        while heap:
            counter, index, queue = heappop(heap)
            for request in queue:
                yield request
                is_new = request.num_preemptions == 0
                heappush(heap, (counter + is_new * self._prompt_cost(request), index, queue))
                break

    def arrive(self, request: RequestView) -> None:
        """A new request waits."""
        tenant = self._tenants.setdefault(request.tenant, _Tenant())
        tenant.num_live += 1
        self._owners[request.request_id] = (request.tenant, self._num_pushed)
        self._push(request, is_new=True)

    def come_back(self, request: RequestView) -> None:
        """A preempted request waits again; its prompt was counted."""
        self._push(request, is_new=False)

    def end(self, request: RequestView) -> None:
        """A request ended; what it emitted in the step that is landing is still to be counted."""
        owner = self._owners.pop(request.request_id, None)
        if owner is not None:
            name, _ = owner
            tenant = self._tenants[name]
            tenant.num_live -= 1
            self._ended[request.request_id] = name
            self._settle(name, tenant)

    def land(self, event: StepLanded) -> None:
        """Counts the prompts that were admitted and the tokens that were emitted."""
        for name, tenant in list(self._queued.items()):
            self._settle(name, tenant)
        costs: dict[str, float] = {}
        for request_id, count in event.num_emitted.items():
            owner = self._owners.get(request_id)
            payer = self._ended.get(request_id) if owner is None else owner[0]
            if payer is not None:
                if payer not in costs:
                    costs[payer] = self._output_cost(payer)
                self._tenants[payer].counter += count * costs[payer]
        self._ended.clear()
        if self._queued:
            self._level = min(tenant.counter for tenant in self._queued.values())
        self._forget_idle()

    def _push(self, request: RequestView, *, is_new: bool) -> None:
        name, rank = self._owners[request.request_id]
        tenant = self._tenants[name]
        if name not in self._queued:
            # What a tenant did not ask for while it was away is no credit.
            tenant.counter = max(tenant.counter, self._level)
            if not self._queued:
                self._level = tenant.counter
            self._queued[name] = tenant
        self._num_pushed += 1
        heappush(tenant.queue, (request.arrival_time_s, rank, self._num_pushed, request, is_new))

    def _settle(self, name: str, tenant: _Tenant) -> None:
        """Takes the requests that no longer wait from the head of a queue, and counts the prompts of those admitted."""
        queue = tenant.queue
        while queue and queue[0][3].status in (RequestStatus.RUNNING, RequestStatus.FINISHED):
            _, _, _, request, is_new = heappop(queue)
            if is_new and (request.status is RequestStatus.RUNNING or request.num_computed_tokens > 0):
                tenant.counter += self._prompt_cost(request)
        if not queue and self._queued.pop(name, None) is not None and not self._queued:
            self._level = max(self._level, tenant.counter)

    def _forget_idle(self) -> None:
        """Drops tenants that would be lifted to the level anyway, once there are many without requests."""
        if len(self._tenants) - len(self._queued) > _MAX_IDLE:
            level = self._level
            self._tenants = {
                name: tenant for name, tenant in self._tenants.items() if tenant.num_live or tenant.counter > level
            }
