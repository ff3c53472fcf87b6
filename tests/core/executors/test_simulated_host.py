"""Host memory of a simulated device: time, losses, and what the core may ask of it."""

from __future__ import annotations

import pytest

from tokenloom.batch import BlockExport, BlockImport, BlockTransfers
from tokenloom.executors.simulated_host import SimulatedHostMemory
from tokenloom.testing.stub_model import full_group


def host(loss: float = 0.0) -> SimulatedHostMemory:
    groups = (full_group(), full_group(1, page_bytes=10))
    return SimulatedHostMemory(groups, bytes_per_s=100.0, loss=loss)


def export(name: str, *counts: int) -> BlockExport:
    return BlockExport(name, tuple(tuple(range(1, count + 1)) for count in counts))


def test_time_is_bytes_over_bandwidth_both_ways() -> None:
    memory = host()
    seconds, lost = memory.move(BlockTransfers(exports=(export("a", 3, 2), export("b", 1, 0))))
    assert seconds == pytest.approx((4 * 64 + 2 * 10) / 100.0)
    assert lost == ()
    back = BlockImport("a", ((2,), (0, 1)), ((7,), (8, 9)))
    assert memory.move(BlockTransfers(imports=(back,)))[0] == pytest.approx((64 + 20) / 100.0)
    seconds, lost = memory.move(BlockTransfers(dropped=("b",)))
    assert (seconds, lost) == (0.0, ())


def test_what_is_not_there_is_our_own_bug() -> None:
    memory = host()
    memory.move(BlockTransfers(exports=(export("a", 1, 1),)))
    with pytest.raises(AssertionError, match="already"):
        memory.move(BlockTransfers(exports=(export("a", 1, 1),)))
    with pytest.raises(AssertionError, match="of 1"):
        memory.move(BlockTransfers(imports=(BlockImport("a", ((1,), ()), ((5,), ())),)))
    with pytest.raises(KeyError):
        memory.move(BlockTransfers(dropped=("b",)))


def test_losses_come_as_often_as_asked_and_are_dropped_later() -> None:
    memory, lost = host(loss=0.3), list[str]()
    for number in range(2_000):
        lost += memory.move(BlockTransfers(exports=(export(f"r{number}", 1, 1),)))[1]
    assert len(lost) / 2_000 == pytest.approx(0.3, abs=0.05)
    with pytest.raises(AssertionError, match="was lost"):
        memory.move(BlockTransfers(imports=(BlockImport(lost[0], ((0,), ()), ((5,), ())),)))
    memory.move(BlockTransfers(dropped=(lost[1],)))
    assert host(loss=1.0).move(BlockTransfers(exports=(export("a", 1, 1),)))[1] == ("a",)
