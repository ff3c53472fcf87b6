"""The plain torch operations against formulas written out in fp64."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
    x, weight, bias = _random(1, 3, 8), _random(2, 5, 8), _random(3, 5)
    packed = table.pack_linear(weight, bias)
    assert torch.equal(packed.apply(x), torch_ops.linear(x, weight, bias))
    assert torch.equal(packed.apply_float32(x), packed.apply(x))
    assert torch.equal(packed.rows(torch.tensor([4, 0])), weight[[4, 0]])
    assert packed.num_bytes == weight.nbytes + bias.nbytes
    apart = build_op_table(torch.device("cpu"), deterministic=True).pack_linear(weight, bias)
    assert torch.equal(apart.apply(x), torch_ops.row_invariant_linear(x, weight, bias))
    assert table.rms_norm is torch_ops.rms_norm
    assert table.add_rms_norm is torch_ops.add_rms_norm
    assert table.rotary is torch_ops.rotary
    assert table.silu_and_mul is torch_ops.silu_and_mul


@pytest.mark.parametrize("num_rows", SIZES)
def test_rms_norm_with_a_float32_weight_rounds_once(num_rows: int) -> None:
    x, weight = _random(1, num_rows, 33, dtype=torch.bfloat16), 1.0 + 1e-3 * _random(2, 33)
    normed = torch_ops.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(normed, _exact_rms_norm(x, weight, 1e-5).bfloat16(), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("weight_dtype", RELATIVE)
@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("num_rows", SIZES)
def test_head_rms_norm_norms_each_head_with_its_weight(
    num_rows: int, dtype: torch.dtype, weight_dtype: torch.dtype
) -> None:
    projected = _random(1, num_rows, 7, 10, dtype=dtype)
    kept = projected.clone()
    weights = _random(2, 2, 10, dtype=weight_dtype)
    normed = torch_ops.head_rms_norm(projected[:, :5], weights, 3, 1e-5)  # strided, as queries and keys lie
    assert normed.dtype == dtype
    assert torch.equal(projected, kept)
    rows = [weights[0]] * 3 + [weights[1]] * 2
    expected = [_exact_rms_norm(kept[:, head], row, 1e-5) for head, row in enumerate(rows)]
    torch.testing.assert_close(
        normed.double(), torch.stack(expected, 1), rtol=RELATIVE[dtype], atol=RELATIVE[dtype] / 100
    )


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("num_rows", SIZES)
def test_gelu_tanh_and_mul_gates_the_second_half_by_the_first(num_rows: int, dtype: torch.dtype) -> None:
    gate_up = _random(1, num_rows, 34, dtype=dtype)
    kept = gate_up.clone()
    gate, up = gate_up[:, :17].double(), gate_up[:, 17:].double()
    gelu = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    found = torch_ops.gelu_tanh_and_mul(gate_up)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), gelu * up, rtol=2 * RELATIVE[dtype], atol=2 * RELATIVE[dtype])
    assert torch.equal(gate_up, kept)


@pytest.fixture
def three_threads() -> Iterator[None]:
    """More than one, and not a power of two: parts of a tensor then end within rows and within vectors."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("size", [2560, 3001, 40000])
@pytest.mark.parametrize("dtype", RELATIVE)
def test_deterministic_activations_do_not_depend_on_the_other_rows(size: int, dtype: torch.dtype) -> None:
    ops = build_op_table(torch.device("cpu"), deterministic=True)
    gate_up = _random(1, 47, 2 * size, dtype=dtype)
    for activate, plain in (
        (ops.silu_and_mul, torch_ops.silu_and_mul),
        (ops.gelu_tanh_and_mul, torch_ops.gelu_tanh_and_mul),
    ):
        whole = activate(gate_up)
        alone = torch.cat([activate(gate_up[row : row + 1]) for row in range(47)])
        assert torch.equal(whole, alone)
        torch.testing.assert_close(whole, plain(gate_up))
    assert ops.silu_and_mul(gate_up[:0]).shape == (0, size)
