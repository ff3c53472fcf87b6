"""Rounding weights to codes: how far they may be off, and which scales are kept in float16."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from tokenloom_quant.low_bit.affine_codes import AffineCodes, round_to_codes
from tokenloom_quant.low_bit.reference import round_activations


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group_size", [None, 32, 128])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [1e-7, 0.02, 30.0])
def test_codes_are_within_half_a_step(
    bits: Literal[4, 8], group_size: int | None, symmetric: bool, size: float
) -> None:
    weight = _random(1, 20, 130) * size
    affine = round_to_codes(weight, bits, group_size, symmetric=symmetric)
    step = affine.scale.float().repeat_interleave(affine.group_size, dim=1)[:, :130]
    # A minimum that is rounded to float16 moves all weights of its group by up to that.
    slack = 0.0 if symmetric or affine.scale.dtype == torch.float32 else float(weight.abs().max()) * 2**-11
    assert bool(((affine.dequantized() - weight).abs() <= step * 0.51 + slack).all())
    assert int(affine.codes.max()) == 2**bits - 1
    assert int(affine.codes.min()) == (1 if symmetric else 0)


def test_scales_are_float16_where_that_holds_them() -> None:
    weight = _random(1, 4, 64)
    assert round_to_codes(weight, 4, 32, symmetric=True).scale.dtype == torch.float16
    assert round_to_codes(weight * 1e-6, 4, 32, symmetric=True).scale.dtype == torch.float32
    assert round_to_codes(weight * 1e6, 4, 32, symmetric=False).scale.dtype == torch.float32
    weight[2, :32] = 0.0  # a scale of 0 is no small one
    affine = round_to_codes(weight, 4, 32, symmetric=True)
    assert affine.scale.dtype == torch.float16
    assert float(affine.scale[2, 0]) == 0.0
    assert torch.equal(affine.dequantized()[2, :32], torch.zeros(32))


def test_weights_that_are_all_equal_are_kept() -> None:
    affine = round_to_codes(torch.full((3, 32), 0.75), 4, 32, symmetric=False)
    assert torch.equal(affine.dequantized(), torch.full((3, 32), 0.75))


def test_a_last_group_that_is_not_whole_has_its_own_range() -> None:
    weight = torch.cat((_random(1, 2, 64), 0.01 * _random(2, 2, 5)), dim=1)
    affine = round_to_codes(weight, 4, 64, symmetric=False)
    assert affine.scale.shape == (2, 2)
    assert bool((affine.dequantized()[:, 64:] - weight[:, 64:]).abs().max() < 2e-3)


def test_dequantized_is_scale_times_code_plus_minimum() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(2, 1)
    scale, minimum = torch.tensor([[0.5, 2.0], [1.0, 1.0]]), torch.tensor([[-1.0, 0.0], [0.0, 3.0]])
    found = AffineCodes(codes, scale, minimum, 4, 8).dequantized()
    assert found[0].tolist() == [0.5 * k - 1.0 for k in range(8)] + [2.0 * k for k in range(8, 16)]
    assert found[1].tolist() == [float(k) for k in range(8)] + [k + 3.0 for k in range(8, 16)]
    assert AffineCodes(codes, scale, None, 4, 8).dequantized()[0, 0] == -4.0


def test_activations_are_rounded_by_row_and_group() -> None:
    x = torch.tensor([[1.0, 0.26, 100.0, -50.0], [0.0, 0.0, 2.0, -2.0]])
    found = round_activations(x, 2)
    assert torch.equal(found[1], x[1])
    torch.testing.assert_close(found[0], torch.tensor([1.0, 33 / 127, 100.0, -64 * 100 / 127]))
