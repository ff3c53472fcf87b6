"""The measure of fairness: services of tenants that wait at the same time."""

from __future__ import annotations

from tokenloom.simulation.service_gap import ServiceGap


def test_a_tenant_alone_leaves_no_gap() -> None:
    gap = ServiceGap()
    gap.wait("x")
    gap.serve("x", 100.0)
    gap.measure()
    assert gap.largest == 0.0


def test_idle_time_is_no_grievance() -> None:
    """y comes when x had much already; what counts is what both get from then on."""
    gap = ServiceGap()
    gap.wait("x")
    gap.serve("x", 100.0)
    gap.wait("y")
    gap.measure()
    assert gap.largest == 0.0
    gap.serve("x", 7.0)
    gap.measure()
    gap.serve("y", 5.0)
    gap.measure()
    assert gap.largest == 7.0


def test_a_tenant_that_comes_back_starts_at_the_least_of_those_that_wait() -> None:
    gap = ServiceGap()
    for tenant in ("x", "y"):
        gap.wait(tenant)
    gap.serve("y", 3.0)
    gap.begin("y")
    gap.serve("x", 50.0)
    gap.measure()
    gap.wait("y")
    gap.measure()
    assert gap.largest == 0.0
    # When nobody waits, the level stays.
    gap.serve("x", 10.0)
    gap.begin("x")
    gap.begin("y")
    gap.wait("z")
    gap.wait("x")
    gap.measure()
    assert gap.largest == 0.0
