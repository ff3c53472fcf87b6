"""What the kit counts as the memory of an object, and what it takes for a leak."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import torch

from tokenloom.testing.footprint import bytes_leaked, footprint_bytes


class Holder:
    """Something with an attribute."""

    def __init__(self, held: object = None) -> None:
        self.held = held


@pytest.mark.parametrize(
    "held",
    [
        torch.zeros(1_000),
        torch.zeros(1_000)[:1],
        {"a": [torch.zeros(1_000)]},
        np.zeros(1_000, np.float32),
        np.zeros(1_000, np.float32)[:1],
        np.array([torch.zeros(1_000), None], dtype=object),
        torch.from_numpy(np.zeros(1_000, np.float32)),
        bytearray(4_000),
        partial(max, torch.zeros(1_000)),
        (lambda big: lambda: big)(torch.zeros(1_000)),
    ],
    ids=lambda held: type(held).__name__,
)
def test_footprint_counts_what_is_held(held: object) -> None:
    assert footprint_bytes(Holder(held)) - footprint_bytes(Holder()) >= 4_000


def test_footprint_counts_a_storage_once() -> None:
    base = torch.zeros(10_000)
    one, many = (
        footprint_bytes(Holder([base])),
        footprint_bytes(Holder([base[start:] for start in range(0, 10_000, 100)])),
    )
    assert many - one < 40_000


@pytest.mark.parametrize("kept", [object, partial(torch.zeros, 4), partial(np.zeros, 4), partial(float, "1.5"), bool])
def test_what_is_kept_of_each_use_is_a_leak(kept: partial[object] | type) -> None:
    holder: Holder = Holder([])

    def use(_: int) -> None:
        assert isinstance(holder.held, list)
        holder.held.append(kept())

    assert bytes_leaked(holder, use, 200) > 0


def test_what_settles_is_no_leak() -> None:
    memo: OrderedDict[int, torch.Tensor] = OrderedDict()

    def use(number: int) -> None:
        memo[number] = torch.zeros(8)
        if len(memo) > 50:
            memo.popitem(last=False)

    assert bytes_leaked(memo, use, 200) == 0


def test_a_counter_is_no_leak() -> None:
    holder = Holder(0)

    def use(number: int) -> None:
        holder.held = number * 10**6

    assert bytes_leaked(holder, use, 200) == 0
