"""The built-in admission policies keep the contract."""

from __future__ import annotations

from typing import Any, ClassVar

from tokenloom.testing import AdmissionSuite


class TestOptimistic(AdmissionSuite):
    """Whoever fits now."""

    plugin = "optimistic"


class TestReserveAll(AdmissionSuite):
    """Whoever fits at everybody's cap."""

    plugin = "reserve_all"


class TestPeakMemory(AdmissionSuite):
    """Whoever fits at the peak."""

    plugin = "peak_memory"


class TestPeakMemoryByTenant(AdmissionSuite):
    """The same with outputs as long as the tenant's so far."""

    plugin = "peak_memory"
    settings: ClassVar[dict[str, Any]] = {"estimate": "tenant_mean"}
