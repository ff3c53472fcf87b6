"""Who sends the requests of a workload, how urgent they are and how soon they are wanted: drawn at random, by seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenloom.request_factory import RequestTraits
from tokenloom.simulation.measurements import SloTargets
from tokenloom.simulation.timed_request import TimedRequest

__all__ = ["RequestMix", "mix_requests", "traits_of"]


@dataclass(frozen=True, slots=True)
class RequestMix:
    """What to draw for each request, each property apart from the others.

    Attributes:
        num_tenants: tenants that requests belong to; 1 leaves them nobody's.
        tenant_skew: the k-th tenant sends in proportion to k ** -tenant_skew; 0 makes all alike.
        num_priorities: priorities 0, 1, ..., equally likely; 0 is the most urgent.
        relaxed_share: of the requests, those whose targets are longer.
        relaxed_factor: by this factor.
    """

    num_tenants: int = 1
    tenant_skew: float = 0.0
    num_priorities: int = 1
    relaxed_share: float = 0.0
    relaxed_factor: float = 10.0


def mix_requests(requests: Sequence[TimedRequest], mix: RequestMix, seed: int) -> list[TimedRequest]:
    """The same requests with tenants, priorities and targets. Equal arguments give equal requests."""
    # One stream for each property: another number of tenants must not move the priorities.
    owners, urgencies, targets = (random.Random(f"{seed}/{name}") for name in ("tenant", "priority", "targets"))
    weights = [rank**-mix.tenant_skew for rank in range(1, mix.num_tenants + 1)]
    tenants = [f"tenant-{index}" for index in range(mix.num_tenants)] if mix.num_tenants > 1 else [""]
    chosen = owners.choices(tenants, weights, k=len(requests))
    return [
        replace(
            request,
            tenant=tenant,
            priority=urgencies.randrange(mix.num_priorities),
            slo_factor=mix.relaxed_factor if targets.random() < mix.relaxed_share else 1.0,
        )
        for request, tenant in zip(requests, chosen, strict=True)
    ]


def traits_of(request: TimedRequest, targets: SloTargets) -> RequestTraits:
    """What schedulers and caches see of a request beside its tokens."""
    return RequestTraits(
        priority=request.priority,
        tenant=request.tenant,
        ttft_slo_s=targets.ttft_s * request.slo_factor,
        tpot_slo_s=targets.tpot_s * request.slo_factor,
    )
