"""Handing scales over to norms and rows: the layer says what it said before."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.quant.checkpoint_packing import random
from tokenloom.quantization.scale_producers import settled_norm


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_divided_norm_and_its_scale_say_what_the_norm_said(offset: float, dtype: torch.dtype) -> None:
    weight, wanted = random(0, 257).to(dtype).float(), random(1, 257).exp()
    weight[3], weight[4] = -offset, 0.0  # norms that give zeros
    stored, scale = settled_norm(weight, offset, dtype, wanted)
    assert torch.equal(stored.to(dtype).float(), stored)
    torch.testing.assert_close((stored + offset) * scale, weight + offset, rtol=1e-6, atol=0.0)
    assert bool(scale.isfinite().all())
    near = (weight + offset).abs() > 0.05
    torch.testing.assert_close(scale[near], wanted[near], rtol=0.2, atol=0.0)


def test_settling_twice_changes_nothing() -> None:
    weight, wanted = random(0, 100), random(1, 100).exp()
    stored, scale = settled_norm(weight, 0.0, torch.bfloat16, wanted)
    again, same = settled_norm(weight, 0.0, torch.bfloat16, scale)
    assert torch.equal(stored, again)
    assert torch.equal(scale, same)
