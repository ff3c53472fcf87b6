"""ModelConfig finds contradictions; rotary frequencies follow their formulas."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from tokenloom.errors import ModelError
from tokenloom.model_config import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ModelConfig,
    RopeConfig,
    YarnScaling,
)

CONFIG = ModelConfig(
    architecture="llama",
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=160,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    ropes=(RopeConfig(10000.0, 32, None),) * 2,
    tie_word_embeddings=True,
    mlp_bias=False,
    hidden_act="silu",
    windows=(None, 8),
    attn_soft_cap=None,
    final_soft_cap=None,
    bos_token_id=None,
    eos_token_ids=(),
    dtype="bfloat16",
)


def _both(rope: RopeConfig) -> tuple[RopeConfig, RopeConfig]:
    return (rope, rope)


def test_validated_returns_a_sound_config() -> None:
    assert CONFIG.validated("here") is CONFIG


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"num_kv_heads": 0}, "num_kv_heads must be at least 1, got 0"),
        ({"num_heads": 5}, "num_heads must be a multiple of num_kv_heads"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps"),
        ({"windows": (None,)}, "windows needs one entry per layer (2), got 1"),
        (
            {"ropes": _both(RopeConfig(10000.0, 32, DivisorScaling((1.0,) * 16, 0.0)))},
            "attention_factor must be positive",
        ),
        ({"ropes": _both(RopeConfig(10000.0, 32, YarnScaling(4.0, 64, 1.0, 1.0, 2.0)))}, "0 < beta_slow <= beta_fast"),
        *(
            ({"ropes": _both(RopeConfig(10000.0, 32, YarnScaling(4.0, 64, 1.0, fast, slow)))}, "beta_slow <= beta_fast")
            for fast, slow in ((math.inf, 1.0), (math.nan, 1.0), (1e308, 1.0), (32.0, 5e-324), (math.inf, math.inf))
        ),
        ({"ropes": _both(RopeConfig(10000.0, 32, YarnScaling(math.nan, 64, 1.0)))}, "factor must be positive"),
        ({"ropes": _both(RopeConfig(1.0, 32, YarnScaling(4.0, 64, 1.0)))}, "theta must be a positive number above 1"),
        (
            {"ropes": _both(RopeConfig(10000.0, 32, LongRopeScaling((1.0,) * 16, (1.0,) * 15, 8, 1.0)))},
            "needs 16 frequency divisors (rotary_dim / 2), got 15",
        ),
        ({"ropes": (None,)}, "ropes needs one entry per layer (2), got 1"),
        ({"windows": (None, 0)}, "an attention window must be at least 1, got 0"),
        ({"hidden_act": "relu"}, "hidden_act must be one of silu"),
        ({"dtype": "int8"}, "dtype must be one of float32, float16, bfloat16"),
        ({"ropes": _both(RopeConfig(10000.0, 34, None))}, "rotary_dim must be even and at most head_dim=32, got 34"),
        ({"ropes": _both(RopeConfig(10000.0, 31, None))}, "rotary_dim must be even"),
        ({"ropes": _both(RopeConfig(math.inf, 32, None))}, "theta must be a positive number above 1"),
        ({"ropes": _both(RopeConfig(10000.0, 32, LinearScaling(-1.0)))}, "factor must be positive"),
        ({"ropes": _both(RopeConfig(10000.0, 32, Llama3Scaling(0.0, 1.0, 4.0, 8)))}, "factor must be positive"),
        (
            {"ropes": _both(RopeConfig(10000.0, 32, Llama3Scaling(8.0, 4.0, 1.0, 8)))},
            "low_freq_factor < high_freq_factor",
        ),
        (
            {"ropes": _both(RopeConfig(10000.0, 32, Llama3Scaling(8.0, 1.0, 4.0, 0)))},
            "original_max_position_embeddings",
        ),
        ({"ropes": _both(RopeConfig(10000.0, 32, DivisorScaling((1.0,))))}, "needs 16 frequency divisors"),
        ({"ropes": _both(RopeConfig(10000.0, 32, DivisorScaling((0.0,) * 16)))}, "divisors must be positive"),
    ],
)
def test_validated_names_origin_and_contradiction(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelError) as caught:
        dataclasses.replace(CONFIG, **changes).validated("some/file")
    assert str(caught.value).startswith("some/file: ")
    assert expected in str(caught.value)


def test_validated_lists_every_contradiction() -> None:
    with pytest.raises(ModelError, match=r"hidden_size.*vocab_size.*hidden_act"):
        dataclasses.replace(CONFIG, hidden_size=0, vocab_size=-1, hidden_act="tanh").validated("x")


def test_inv_freq_without_scaling() -> None:
    inv_freq = RopeConfig(10000.0, 8, None).inv_freq()
    assert inv_freq.dtype == torch.float32
    assert inv_freq.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])


def test_inv_freq_linear_divides_all() -> None:
    plain = RopeConfig(10000.0, 8, None).inv_freq()
    assert torch.equal(RopeConfig(10000.0, 8, LinearScaling(4.0)).inv_freq(), plain / 4.0)


def test_inv_freq_divisors_divide_each() -> None:
    plain = RopeConfig(10000.0, 8, None).inv_freq()
    scaled = RopeConfig(10000.0, 8, DivisorScaling((1.0, 2.0, 3.0, 4.0))).inv_freq()
    torch.testing.assert_close(scaled, plain / torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_inv_freq_llama3_keeps_short_stretches_long_and_blends_between() -> None:
    plain = RopeConfig(10000.0, 32, None).inv_freq().double()
    scaled = RopeConfig(10000.0, 32, Llama3Scaling(8.0, 1.0, 4.0, 128)).inv_freq().double()
    kinds = set()
    for frequency, found in zip(plain.tolist(), scaled.tolist()):
        wavelength = 2 * math.pi / frequency
        if wavelength < 128 / 4.0:
            kind, expected = "kept", frequency
        elif wavelength > 128 / 1.0:
            kind, expected = "stretched", frequency / 8.0
        else:
            blend = (128 / wavelength - 1.0) / (4.0 - 1.0)
            kind, expected = "blended", (1 - blend) * frequency / 8.0 + blend * frequency
        kinds.add(kind)
        assert found == pytest.approx(expected, rel=1e-5)
    assert kinds == {"kept", "stretched", "blended"}


def test_inv_freq_yarn_keeps_fast_pairs_stretches_slow_ones_and_ramps_between() -> None:
    plain = RopeConfig(10000.0, 32, None).inv_freq()
    scaled = RopeConfig(10000.0, 32, YarnScaling(4.0, 64, 1.5)).inv_freq()
    kept = ((scaled / plain - 1 / 4.0) / (1 - 1 / 4.0)).tolist()
    # 64 positions: a pair turns 32 times at index 16 * log(64 / 64 pi) / log(10000) < 0, once at 4.03: rounded to 5.
    assert kept[:6] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0], abs=1e-5)
    assert kept[6:] == pytest.approx([0.0] * 10, abs=1e-5)
    exact = RopeConfig(10000.0, 32, YarnScaling(4.0, 64, 1.5, truncate=False)).inv_freq()
    end = 16 * math.log(64 / (2 * math.pi)) / math.log(10000.0)
    kept = ((exact / plain - 1 / 4.0) / (1 - 1 / 4.0)).tolist()
    assert kept[:5] == pytest.approx([1 - pair / end for pair in range(5)], abs=1e-5)


def test_inv_freq_yarn_with_a_ramp_of_no_length_is_a_step() -> None:
    plain = RopeConfig(10000.0, 8, None).inv_freq()
    scaled = RopeConfig(10000.0, 8, YarnScaling(4.0, 4, 1.0, beta_fast=1.0, beta_slow=1.0)).inv_freq()
    assert (scaled / plain).tolist() == pytest.approx([1.0, 0.25, 0.25, 0.25])


def test_amplitude_is_one_unless_the_scaling_says_otherwise() -> None:
    assert RopeConfig(10000.0, 8, None).amplitude == 1.0
    assert RopeConfig(10000.0, 8, LinearScaling(2.0)).amplitude == 1.0
    assert RopeConfig(10000.0, 8, YarnScaling(4.0, 64, 1.25)).amplitude == 1.25
    long = RopeConfig(10000.0, 4, LongRopeScaling((1.0, 1.0), (2.0, 3.0), 64, 1.75))
    assert long.amplitude == 1.75
    assert long.for_length(64) == RopeConfig(10000.0, 4, DivisorScaling((1.0, 1.0), 1.75))
    assert long.for_length(65) == RopeConfig(10000.0, 4, DivisorScaling((2.0, 3.0), 1.75))
