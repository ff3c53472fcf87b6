"""Tenants, priorities and targets that are drawn for the requests of a workload."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tokenloom.request_factory import RequestTraits
from tokenloom.simulation.measurements import SloTargets
from tokenloom.simulation.request_mix import RequestMix, mix_requests, traits_of
from tokenloom.simulation.timed_request import TimedRequest

REQUESTS = [TimedRequest(float(index), 10 + index, 5) for index in range(6000)]


def test_nothing_asked_for_changes_nothing() -> None:
    assert mix_requests(REQUESTS, RequestMix(), seed=1) == REQUESTS


@pytest.mark.parametrize(("skew", "shares"), [(0.0, (1 / 3, 1 / 3, 1 / 3)), (1.0, (6 / 11, 3 / 11, 2 / 11))])
def test_tenants_send_by_their_rank(skew: float, shares: tuple[float, ...]) -> None:
    mixed = mix_requests(REQUESTS, RequestMix(num_tenants=3, tenant_skew=skew), seed=1)
    counts = Counter(request.tenant for request in mixed)
    assert sorted(counts) == ["tenant-0", "tenant-1", "tenant-2"]
    for index, share in enumerate(shares):
        assert counts[f"tenant-{index}"] / len(REQUESTS) == pytest.approx(share, abs=0.03)


def test_priorities_and_relaxed_targets_have_their_shares() -> None:
    mixed = mix_requests(REQUESTS, RequestMix(num_priorities=4, relaxed_share=0.3, relaxed_factor=5.0), seed=1)
    priorities = Counter(request.priority for request in mixed)
    assert sorted(priorities) == [0, 1, 2, 3]
    assert max(priorities.values()) < 1.15 * min(priorities.values())
    factors = Counter(request.slo_factor for request in mixed)
    assert sorted(factors) == [1.0, 5.0]
    assert factors[5.0] / len(REQUESTS) == pytest.approx(0.3, abs=0.03)


def test_each_property_has_a_stream_of_its_own_and_a_seed_decides() -> None:
    mix = RequestMix(num_tenants=3, num_priorities=3, relaxed_share=0.5)
    mixed = mix_requests(REQUESTS[:50], mix, seed=1)
    assert mixed == mix_requests(REQUESTS[:50], mix, seed=1) != mix_requests(REQUESTS[:50], mix, seed=2)
    more_tenants = mix_requests(REQUESTS[:50], replace(mix, num_tenants=9), seed=1)
    assert [r.priority for r in more_tenants] == [r.priority for r in mixed]
    assert [r.slo_factor for r in more_tenants] == [r.slo_factor for r in mixed]
    assert [replace(r, tenant="", priority=0, slo_factor=1.0) for r in mixed] == REQUESTS[:50]


def test_policies_see_tenant_priority_and_its_own_targets() -> None:
    request = TimedRequest(0.0, 1, 1, tenant="t", priority=2, slo_factor=3.0)
    expected = RequestTraits(priority=2, tenant="t", ttft_slo_s=6.0, tpot_slo_s=0.75)
    assert traits_of(request, SloTargets(2.0, 0.25)) == expected
