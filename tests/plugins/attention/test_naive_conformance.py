"""`naive` through the conformance suite of its contract."""

from __future__ import annotations

from tokenloom.testing import AttentionSuite


class TestNaive(AttentionSuite):
    plugin = "naive"
