"""The built-in victim policies keep the contract."""

from __future__ import annotations

from tokenloom.testing import VictimSuite


class TestLastIn(VictimSuite):
    """Whoever was admitted last."""

    plugin = "last_in"


class TestLowestPriority(VictimSuite):
    """Whoever is least urgent."""

    plugin = "lowest_priority"


class TestLeastRecompute(VictimSuite):
    """Whoever has computed least."""

    plugin = "least_recompute"


class TestMostBlocks(VictimSuite):
    """Whoever holds most."""

    plugin = "most_blocks"
