"""The built-in victim policies keep the contract."""

from __future__ import annotations

from tokenloom.testing import VictimSuite


class TestLastIn(VictimSuite):
    """Whoever was admitted last."""

    plugin = "last_in"
