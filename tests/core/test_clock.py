"""The virtual clock moves when told to, and never back."""

from __future__ import annotations

import pytest

from tokenloom.clock import VirtualClock


def test_virtual_time_moves_only_when_told_and_only_forward() -> None:
    clock = VirtualClock(2.0)
    assert clock.now() == clock.now() == 2.0
    clock.advance(0.5)
    clock.advance_to(4.0)
    assert clock.now() == 4.0
    clock.advance_to(3.0)
    assert clock.now() == 4.0
    with pytest.raises(AssertionError, match="backwards"):
        clock.advance(-1.0)
