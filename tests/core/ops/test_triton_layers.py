"""The layers' operations in Triton, run by its interpreter, against formulas in fp64."""

from __future__ import annotations

import math

import pytest
import torch

from tokenloom.ops import torch_ops
from tokenloom.ops.table import OpTable, build_op_table

DTYPES = {torch.float32: 1e-6, torch.float16: 2.0**-10}
"""The interpreter cannot round to bfloat16. The number is one rounding, relative."""
ROWS = [0, 1, 17]
SIZES = [1, 33, 576]


@pytest.fixture(scope="module")
def ops() -> OpTable:
    return build_op_table(torch.device("cpu"), "triton")


def _random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _within_nan(values: torch.Tensor) -> torch.Tensor:
    """The same values in rows that lie in NaN: whoever reads beyond a row's end shows it."""
    rows = values.flatten(1)
    around = torch.full((rows.shape[0] + 2, rows.shape[1] + 40), float("nan"), dtype=values.dtype)
    inside = around[1:-1, 3 : 3 + rows.shape[1]]
    inside.copy_(rows)
    return inside.view(values.shape)


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def _assert_near(found: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=DTYPES[dtype], atol=DTYPES[dtype] / 10)


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_rows", ROWS)
def test_rms_norm_equals_its_formula(
    ops: OpTable, num_rows: int, size: int, dtype: torch.dtype, weight_dtype: torch.dtype
) -> None:
    x, weight = _within_nan(_random(1, num_rows, size, dtype=dtype)), _random(2, size, dtype=weight_dtype)
    _assert_near(ops.rms_norm(x, weight, 1e-2), _normed(x, weight, 1e-2), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_rows", ROWS)
def test_add_rms_norm_norms_the_rounded_sum_and_keeps_it(
    ops: OpTable, num_rows: int, size: int, dtype: torch.dtype
) -> None:
    x, residual = (_within_nan(_random(seed, num_rows, size, dtype=dtype)) for seed in (1, 2))
    weight, total = _random(3, size, dtype=dtype), x + residual
    normed, returned = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert returned is residual
    assert torch.equal(residual, total)
    _assert_near(normed, _normed(total, weight, 1e-5), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [10, 64])
@pytest.mark.parametrize("num_rows", ROWS)
def test_head_rms_norm_norms_each_head_with_its_weight(
    ops: OpTable, num_rows: int, head_dim: int, dtype: torch.dtype
) -> None:
    heads = _within_nan(_random(1, num_rows, 7, head_dim, dtype=dtype))[:, :5]
    weights = _random(2, 2, head_dim, dtype=dtype)
    exact = [_normed(heads[:, head], weights[int(head >= 3)], 1e-5) for head in range(5)]
    _assert_near(ops.head_rms_norm(heads, weights, 3, 1e-5), torch.stack(exact, 1), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "turned"), [(16, 16), (16, 6), (80, 80), (7, 2)])
@pytest.mark.parametrize("num_rows", ROWS)
def test_rotary_turns_what_the_reference_turns(
    ops: OpTable, num_rows: int, head_dim: int, turned: int, dtype: torch.dtype
) -> None:
    heads = _within_nan(_random(1, num_rows, 5, head_dim, dtype=dtype))[:, :3]
    cos, sin = _random(2, num_rows, 1, turned, dtype=dtype), _random(3, num_rows, 1, turned, dtype=dtype)
    exact = torch_ops.rotary(heads.double(), cos.double(), sin.double())
    torch.testing.assert_close(ops.rotary(heads, cos, sin).double(), exact, rtol=DTYPES[dtype], atol=DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 33, 1500])
@pytest.mark.parametrize("num_rows", ROWS)
def test_gates_multiply_the_second_half(ops: OpTable, num_rows: int, size: int, dtype: torch.dtype) -> None:
    gate_up = _within_nan(4 * _random(1, num_rows, 2 * size, dtype=dtype))
    gate, up = gate_up[:, :size].double(), gate_up[:, size:].double()
    _assert_near(ops.silu_and_mul(gate_up), gate / (1 + (-gate).exp()) * up, dtype)
    tanh = torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))
    _assert_near(ops.gelu_tanh_and_mul(gate_up), 0.5 * gate * (1 + tanh) * up, dtype)


def test_gates_far_from_zero_do_not_overflow(ops: OpTable) -> None:
    gate_up = torch.tensor([[-1e4, 1e4, -100.0, 2.0, 2.0, 2.0]])
    torch.testing.assert_close(ops.silu_and_mul(gate_up), torch.tensor([[0.0, 2e4, 0.0]]))
    torch.testing.assert_close(ops.gelu_tanh_and_mul(gate_up), torch.tensor([[0.0, 2e4, 0.0]]))


def test_linear_layers_are_those_of_torch(ops: OpTable) -> None:
    x, weight, bias = _random(1, 3, 8), _random(2, 6, 8), _random(3, 6)
    packed = ops.pack_linear(weight, bias)
    assert torch.equal(packed.apply(x), torch_ops.linear(x, weight, bias))
    torch.testing.assert_close(
        packed.apply_gated(x, "gelu_tanh"), torch_ops.gelu_tanh_and_mul(torch_ops.linear(x, weight, bias))
    )
    apart = build_op_table(torch.device("cpu"), "triton", deterministic=True).pack_linear(weight, bias)
    assert torch.equal(apart.apply(x), torch_ops.row_invariant_linear(x, weight, bias))
