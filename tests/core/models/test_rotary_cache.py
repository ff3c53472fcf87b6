"""The table of rotary angles."""

from __future__ import annotations

import pytest
import torch

from tokenloom.model_config import DivisorScaling, LinearScaling, RopeConfig, RopeScaling
from tokenloom.models.rotary_cache import RotaryCache

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("scaling", "divisors"),
    [(None, (1, 1, 1)), (LinearScaling(4.0), (4, 4, 4)), (DivisorScaling((1.0, 2.0, 8.0)), (1, 2, 8))],
)
def test_rotary_cache_holds_position_times_frequency(
    scaling: RopeScaling | None, divisors: tuple[int, int, int]
) -> None:
    rope = RopeConfig(theta=500.0, rotary_dim=6, scaling=scaling)
    positions = torch.tensor([0, 31, 7, 7])
    rotation = RotaryCache(rope, 32, CPU, torch.float32).lookup(positions)
    frequencies = torch.tensor([500.0 ** (-2 * pair / 6) / divisors[pair] for pair in range(3)], dtype=torch.float64)
    angles = positions.double().unsqueeze(1) * frequencies  # [T, 3]
    assert rotation.cos.shape == (4, 1, 6)
    expected_cos = torch.cat((angles.cos(), angles.cos()), -1).unsqueeze(1)
    expected_sin = torch.cat((-angles.sin(), angles.sin()), -1).unsqueeze(1)
    torch.testing.assert_close(rotation.cos.double(), expected_cos, rtol=0, atol=1e-5)
    torch.testing.assert_close(rotation.signed_sin.double(), expected_sin, rtol=0, atol=1e-5)


def test_rotary_cache_rounds_once_to_the_dtype_that_is_asked_for() -> None:
    rope, positions = RopeConfig(10000.0, 8, None), torch.tensor([599, 300])
    exact, rounded = (RotaryCache(rope, 600, CPU, dtype).lookup(positions) for dtype in (torch.float32, torch.bfloat16))
    assert torch.equal(rounded.cos, exact.cos.bfloat16())
    assert torch.equal(rounded.signed_sin, exact.signed_sin.bfloat16())


def test_rotary_cache_takes_a_step_without_tokens() -> None:
    cache = RotaryCache(RopeConfig(10000.0, 8, None), 4, CPU, torch.float32)
    assert cache.lookup(torch.empty(0, dtype=torch.int64)).cos.shape == (0, 1, 8)


def test_rotary_cache_refuses_positions_beyond_its_end() -> None:
    with pytest.raises(IndexError):
        RotaryCache(RopeConfig(10000.0, 8, None), 4, CPU, torch.float32).lookup(torch.tensor([4]))
