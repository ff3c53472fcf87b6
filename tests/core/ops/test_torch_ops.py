"""The plain torch operations against formulas written out in fp64."""

from __future__ import annotations

import math

import pytest
import torch

from tokenloom.ops import torch_ops
from tokenloom.ops.table import build_op_table

SIZES = [0, 1, 17, 129]
RELATIVE = {torch.float32: 1e-6, torch.bfloat16: 2.0**-7}


def _random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _exact_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("num_rows", SIZES)
def test_rms_norm_equals_its_formula(num_rows: int, dtype: torch.dtype) -> None:
    x, weight = _random(1, num_rows, 33, dtype=dtype), _random(2, 33, dtype=dtype)
    normed = torch_ops.rms_norm(x, weight, 1e-5)
    assert normed.dtype == dtype
    torch.testing.assert_close(
        normed.double(), _exact_rms_norm(x, weight, 1e-5), rtol=RELATIVE[dtype], atol=RELATIVE[dtype]
    )


def test_rms_norm_uses_eps() -> None:
    normed = torch_ops.rms_norm(torch.full((1, 4), 1e-3), torch.ones(4), 1e-2)
    torch.testing.assert_close(normed, torch.full((1, 4), 1e-3 / math.sqrt(1e-6 + 1e-2)))


def test_rms_norm_squares_in_float32_when_float16_would_overflow() -> None:
    x = torch.full((2, 64), 3000.0, dtype=torch.float16)  # 3000^2 is beyond fp16
    normed = torch_ops.rms_norm(x, torch.ones(64, dtype=torch.float16), 1e-5)
    torch.testing.assert_close(normed, torch.ones(2, 64, dtype=torch.float16))


@pytest.mark.parametrize("num_rows", SIZES)
def test_add_rms_norm_norms_the_sum_and_keeps_it_in_the_residual(num_rows: int) -> None:
    x, residual, weight = _random(1, num_rows, 33), _random(2, num_rows, 33), _random(3, 33)
    total = x + residual
    normed, returned = torch_ops.add_rms_norm(x, residual, weight, 1e-5)
    assert returned is residual
    torch.testing.assert_close(residual, total, rtol=0, atol=0)
    torch.testing.assert_close(normed, torch_ops.rms_norm(total, weight, 1e-5), rtol=0, atol=0)


@pytest.mark.parametrize("rotary_dim", [16, 6])
@pytest.mark.parametrize("num_rows", SIZES)
def test_rotary_turns_each_pair_of_halves_as_a_complex_number(num_rows: int, rotary_dim: int) -> None:
    heads = _random(1, num_rows, 3, 16).transpose(0, 1).contiguous().transpose(0, 1)  # strided rows
    angles = _random(2, num_rows, 1, rotary_dim // 2)
    cos, sin = angles.cos(), angles.sin()
    turned = torch_ops.rotary(heads, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))

    half = rotary_dim // 2
    numbers = torch.complex(heads[..., :half].contiguous(), heads[..., half:rotary_dim].contiguous())
    numbers = numbers * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat((numbers.real, numbers.imag, heads[..., rotary_dim:]), -1)
    torch.testing.assert_close(turned, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("num_rows", SIZES)
def test_silu_and_mul_gates_the_second_half_by_the_first(num_rows: int, dtype: torch.dtype) -> None:
    gate_up = _random(1, num_rows, 34, dtype=dtype)
    kept = gate_up.clone()
    gate, up = gate_up[:, :17].double(), gate_up[:, 17:].double()
    expected = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(
        torch_ops.silu_and_mul(gate_up).double(), expected, rtol=2 * RELATIVE[dtype], atol=RELATIVE[dtype]
    )
    torch.testing.assert_close(gate_up, kept, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 16, 17, 50])
def test_row_invariant_linear_is_a_linear_product(num_rows: int, has_bias: bool, dtype: torch.dtype) -> None:
    x, weight = _random(1, num_rows, 33, dtype=dtype), _random(2, 20, 33, dtype=dtype)
    bias = _random(3, 20, dtype=dtype) if has_bias else None
    expected = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    result = torch_ops.row_invariant_linear(x, weight, bias)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=2 * RELATIVE[dtype], atol=20 * RELATIVE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_columns", [33, 576, 1536])
def test_row_invariant_linear_gives_each_row_the_same_bits_in_any_batch(num_columns: int, dtype: torch.dtype) -> None:
    x, weight = _random(1, 50, num_columns, dtype=dtype), _random(2, 96, num_columns, dtype=dtype)
    together = torch_ops.row_invariant_linear(x, weight, None)
    for start, stop in ((0, 1), (49, 50), (3, 8), (7, 40)):
        assert torch.equal(torch_ops.row_invariant_linear(x[start:stop], weight, None), together[start:stop])


def test_build_op_table_gives_the_reference_on_cpu() -> None:
    table = build_op_table(torch.device("cpu"))
    assert table.linear is torch_ops.linear
    assert build_op_table(torch.device("cpu"), deterministic=True).linear is torch_ops.row_invariant_linear
    assert table.rms_norm is torch_ops.rms_norm
    assert table.add_rms_norm is torch_ops.add_rms_norm
    assert table.rotary is torch_ops.rotary
    assert table.silu_and_mul is torch_ops.silu_and_mul
