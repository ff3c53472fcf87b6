"""Grids of small whole numbers, and rounding to nearest."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.quant.checkpoint_packing import random
from tokenloom.quantization.rounded_weight import RoundingScheme, fit_grid, round_rows, round_to_nearest


def scheme(bits: int = 4, group_size: int = 32, *, symmetric: bool = True) -> RoundingScheme:
    return RoundingScheme(bits, group_size, symmetric, torch.float32)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [32, 40, -1])
def test_rounding_is_off_by_half_a_step_at_most(bits: int, symmetric: bool, group_size: int) -> None:
    weight = random(bits, 5, 96)
    rounded = round_to_nearest(weight, scheme(bits, group_size, symmetric=symmetric))
    step = rounded.scale[:, rounded.group_index]
    assert rounded.scale.shape == (5, 1 if group_size == -1 else 3)
    # The zero point is rounded as well, and the largest weight of a symmetric grid lies half a step beyond its end.
    assert bool(((rounded.dequantized() - weight).abs() <= step * (0.501 if symmetric else 1.001)).all())
    assert int(rounded.codes.max()) <= 2**bits - 1
    assert rounded.is_in_order


def test_symmetric_grid_is_that_of_compressed_tensors() -> None:
    scale, zero = fit_grid(torch.tensor([-3.0]), torch.tensor([1.5]), scheme(4))
    assert (scale.item(), zero.item()) == (pytest.approx(3 / 7.5), 8.0)


@pytest.mark.parametrize(("low", "high"), [(0.0, 3.0), (0.5, 3.0), (-0.01, 3.0), (-3.0, 0.0), (-1.0, 2.0)])
def test_grid_reaches_both_ends_and_holds_zero(low: float, high: float) -> None:
    form = scheme(4, symmetric=False)
    scale, zero = fit_grid(torch.tensor([low]), torch.tensor([high]), form)
    assert 0 <= zero.item() <= 15
    assert zero.item() == int(zero.item())
    assert (-zero * scale).item() <= min(low, 0.0) + scale.item() / 2
    assert ((15 - zero) * scale).item() >= high - scale.item() / 2 - 1e-6


def test_group_of_zeros_gives_zeros_and_no_other_number() -> None:
    for symmetric in (True, False):
        rounded = round_to_nearest(torch.zeros(2, 64), scheme(symmetric=symmetric))
        assert torch.equal(rounded.dequantized(), torch.zeros(2, 64))


def test_scales_are_rounded_before_codes_are_chosen() -> None:
    form = RoundingScheme(4, 32, False, torch.float16)
    weight = random(3, 4, 64)
    rounded = round_to_nearest(weight, form)
    assert rounded.scale.dtype == torch.float16
    groups, zero = weight.view(4, 2, 32), rounded.zero.float().unsqueeze(2)
    nearest = (groups / rounded.scale.float().unsqueeze(2)).round() + zero
    assert torch.equal(rounded.codes.view(4, 2, 32).float(), nearest.clamp(0, 15))


def test_dividing_rows_leaves_codes() -> None:
    rounded = round_to_nearest(random(0, 6, 32), scheme())
    divided = rounded.with_rows_divided(2, torch.tensor([2.0, 4.0]))
    assert torch.equal(divided.codes, rounded.codes)
    factors = torch.tensor([1.0, 1.0, 2.0, 4.0, 1.0, 1.0]).unsqueeze(1)
    torch.testing.assert_close(divided.dequantized() * factors, rounded.dequantized())


def test_rows_are_rounded_each_by_itself() -> None:
    x = random(1, 3, 17) * torch.tensor([[1.0], [1e-3], [100.0]])
    assert torch.equal(round_rows(x)[1:2], round_rows(x[1:2]))
    assert bool(((round_rows(x) - x).abs() <= x.abs().amax(dim=1, keepdim=True) / 254 * 1.001).all())
    assert torch.equal(round_rows(torch.zeros(1, 4)), torch.zeros(1, 4))
