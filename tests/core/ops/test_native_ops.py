"""The native operations against the torch reference in fp64, at every level of instructions that this machine has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch

from tests.core.ops.native_levels import LEVELS, NEEDS_COMPILER, at_level
from tokenloom.ops import torch_ops
from tokenloom.ops.native_ops import NativeLinear
from tokenloom.ops.table import OpTable, build_op_table, outline_op_table

pytestmark = NEEDS_COMPILER

BF16 = torch.bfloat16
ROWS = [0, 1, 2, 3, 17, 65]
HALF_ULP = 2.0**-8


@pytest.fixture(params=LEVELS)
def module(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    yield from at_level(request.param)


@pytest.fixture
def ops(module: ModuleType) -> OpTable:
    return build_op_table(torch.device("cpu"), "native")


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def _within_nan(values: torch.Tensor) -> torch.Tensor:
    """The same values in rows that lie in NaN: whoever reads past a row's end, or an unwritten element, shows it."""
    rows = values.flatten(1)
    around = torch.full((rows.shape[0] + 2, rows.shape[1] + 40), float("nan"), dtype=values.dtype)
    inside = around[1:-1, 3 : 3 + rows.shape[1]]
    inside.copy_(rows)
    return inside.view(values.shape)


def _assert_near(found: torch.Tensor, exact: torch.Tensor, *, sums: float = 0.0) -> None:
    """One rounding to bf16, and `sums` for the error of a long fp32 sum."""
    assert found.dtype == BF16
    torch.testing.assert_close(found.double(), exact, rtol=1.01 * HALF_ULP, atol=1e-30 + sums)


def test_linear_takes_weights_that_begin_within_a_word() -> None:
    """As a tensor does that lies in a file behind an odd number of others."""
    weight = _random(2, 1 + 32 * 64)[1:].view(32, 64)
    assert torch.equal(NativeLinear(weight, None).rows(torch.arange(32)), weight)


@pytest.mark.parametrize("size", [1, 7, 64, 129])
def test_rows_are_those_of_the_weight(size: int) -> None:
    """In any order, twice, none; from panels that are not full."""
    weight = torch.randn(71, size, generator=torch.Generator().manual_seed(size)).bfloat16()
    linear = NativeLinear(weight, None)
    for chosen in ([], [70], [31, 32, 0, 70, 31], [*range(70, -1, -1)], [0, 5] * 40):
        indices = torch.tensor(chosen, dtype=torch.int64)
        assert torch.equal(linear.rows(indices), weight[indices])
    apart = torch.arange(70)[::2]
    assert torch.equal(linear.rows(apart), weight[apart])


@pytest.mark.parametrize("index", [-1, 71])
def test_rows_that_do_not_exist_are_refused(index: int) -> None:
    linear = NativeLinear(torch.zeros(71, 8, dtype=torch.bfloat16), None)
    with pytest.raises(IndexError, match=f"row {index} of 71"):
        linear.rows(torch.tensor([0, index]))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("size", "num_outputs"), [(1, 1), (17, 129), (129, 17), (64, 96), (576, 192), (33, 320)])
@pytest.mark.parametrize("num_rows", [*ROWS, 300])
def test_linear_is_a_product_rounded_once(
    ops: OpTable, num_rows: int, size: int, num_outputs: int, has_bias: bool
) -> None:
    x = _within_nan(_random(1, num_rows, size))
    weight, bias = _random(2, num_outputs, size), _random(3, num_outputs) if has_bias else None
    exact = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    found = ops.pack_linear(weight, bias).apply(x)
    assert found.shape == (num_rows, num_outputs)
    _assert_near(found, exact, sums=1e-6 * size)


@pytest.mark.parametrize(("size", "num_outputs"), [(17, 129), (576, 192)])
@pytest.mark.parametrize("num_rows", ROWS)
def test_linear_in_float32_is_not_rounded(ops: OpTable, num_rows: int, size: int, num_outputs: int) -> None:
    x, weight, bias = _within_nan(_random(1, num_rows, size)), _random(2, num_outputs, size), _random(3, num_outputs)
    packed = ops.pack_linear(weight, bias)
    found = packed.apply_float32(x)
    assert found.dtype == torch.float32
    exact = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6 * size)
    assert torch.equal(found.to(BF16), packed.apply(x))


@pytest.mark.parametrize(("size", "num_gated"), [(17, 33), (40, 64), (576, 96), (33, 192)])
@pytest.mark.parametrize("num_rows", [*ROWS, 300])
def test_gated_linear_is_product_and_activation(ops: OpTable, num_rows: int, size: int, num_gated: int) -> None:
    x, weight, bias = (
        _within_nan(_random(1, num_rows, size)),
        _random(2, 2 * num_gated, size),
        _random(3, 2 * num_gated),
    )
    packed = ops.pack_linear(weight, bias)
    exact = x.double() @ weight.double().T + bias.double()
    # Where the activation cannot be part of the product, its operands are rounded, too.
    relative = 1.01 * HALF_ULP if num_gated % 32 == 0 else 4 * HALF_ULP
    for found, expected in (
        (packed.apply_gated(x, "silu"), torch_ops.silu_and_mul(exact)),
        (packed.apply_gated(x, "gelu_tanh"), torch_ops.gelu_tanh_and_mul(exact)),
    ):
        assert found.dtype == BF16
        torch.testing.assert_close(found.double(), expected, rtol=relative, atol=2e-3)


@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_linear_gives_threads_rows_where_columns_are_few(ops: OpTable, num_threads: int) -> None:
    x, weight = _random(1, 200, 2048), _random(2, 70, 2048)
    packed = ops.pack_linear(weight, None)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        found = packed.apply(x)
    finally:
        torch.set_num_threads(before)
    _assert_near(found, x.double() @ weight.double().T, sums=2e-3)


def test_linear_keeps_infinities_and_nan_in_their_rows(ops: OpTable) -> None:
    x, weight = _random(1, 5, 40), _random(2, 33, 40)
    x[1, 3], x[2, 39] = float("nan"), float("inf")
    found = ops.pack_linear(weight, None).apply(x)
    assert found[1].isnan().all()
    assert not found[2].isfinite().any()
    assert found[[0, 3, 4]].isfinite().all()


@pytest.mark.parametrize(("size", "num_outputs"), [(17, 129), (576, 64)])
def test_deterministic_linear_gives_each_row_the_same_bits_in_any_batch(
    module: ModuleType, size: int, num_outputs: int
) -> None:
    packed = build_op_table(torch.device("cpu"), "native", deterministic=True).pack_linear(
        _random(2, num_outputs, size), None
    )
    x = _random(1, 300, size)
    for product in (packed.apply, packed.apply_float32):
        together = product(x)
        for start, stop in ((0, 1), (299, 300), (3, 5), (7, 40), (100, 301)):
            assert torch.equal(product(x[start:stop]), together[start:stop])


@pytest.mark.parametrize("num_gated", [33, 160])
def test_deterministic_gated_linear_gives_each_row_the_same_bits_in_any_batch(
    module: ModuleType, num_gated: int
) -> None:
    ops = build_op_table(torch.device("cpu"), "native", deterministic=True)
    packed, x = ops.pack_linear(_random(2, 2 * num_gated, 96), None), _random(1, 300, 96)
    together = packed.apply_gated(x, "silu")
    for start, stop in ((0, 1), (299, 300), (3, 5), (7, 40), (100, 301)):
        assert torch.equal(packed.apply_gated(x[start:stop], "silu"), together[start:stop])


@pytest.mark.parametrize(("num_tokens", "size"), [(1, 1), (65, 33), (96, 64)])
def test_packed_rows_are_the_weight_s(num_tokens: int, size: int) -> None:
    weight = _random(1, num_tokens, size)
    packed = NativeLinear(weight, None)
    indices = torch.tensor([num_tokens - 1, 0, num_tokens // 2])
    assert torch.equal(packed.rows(indices), weight[indices])
    assert torch.equal(packed.rows(indices[:0]), weight[:0])


def test_an_outline_knows_the_bytes_of_packed_weights() -> None:
    weight, bias = _random(1, 65, 33), _random(2, 65)
    found = outline_op_table("native").pack_linear(weight.to("meta"), bias.to("meta")).num_bytes
    assert found == NativeLinear(weight, bias).num_bytes == 96 * 64 * 2 + 65 * 2


@pytest.mark.parametrize("weight_dtype", [BF16, torch.float32])
@pytest.mark.parametrize("size", [1, 33, 576])
@pytest.mark.parametrize("num_rows", ROWS)
def test_rms_norm_rounds_once(ops: OpTable, num_rows: int, size: int, weight_dtype: torch.dtype) -> None:
    x, weight = _within_nan(_random(1, num_rows, size)), _random(2, size).to(weight_dtype)
    _assert_near(ops.rms_norm(x, weight, 1e-5), torch_ops.rms_norm(x.double(), weight.double(), 1e-5), sums=1e-6)


@pytest.mark.parametrize("size", [33, 576])
@pytest.mark.parametrize("num_rows", ROWS)
def test_add_rms_norm_keeps_the_sum_in_the_residual(ops: OpTable, num_rows: int, size: int) -> None:
    x, residual, weight = (
        _within_nan(_random(1, num_rows, size)),
        _within_nan(_random(2, num_rows, size)),
        _random(3, size),
    )
    total = x + residual
    normed, returned = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert returned is residual
    assert torch.equal(residual, total)
    assert torch.equal(normed, ops.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("weight_dtype", [BF16, torch.float32])
@pytest.mark.parametrize("head_dim", [10, 64])
@pytest.mark.parametrize("num_rows", ROWS)
def test_head_rms_norm_norms_each_head(ops: OpTable, num_rows: int, head_dim: int, weight_dtype: torch.dtype) -> None:
    heads = _within_nan(_random(1, num_rows, 7, head_dim))[:, :5]
    weights = _random(2, 2, head_dim).to(weight_dtype)
    exact = torch_ops.head_rms_norm(heads.float(), weights.float(), 3, 1e-5).double()
    _assert_near(ops.head_rms_norm(heads, weights, 3, 1e-5), exact, sums=1e-6)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (16, 6), (80, 40), (2, 2)])
@pytest.mark.parametrize("num_rows", ROWS)
def test_rotary_turns_pairs_of_halves(ops: OpTable, num_rows: int, head_dim: int, rotary_dim: int) -> None:
    heads = _within_nan(_random(1, num_rows, 5, head_dim))[:, :4]
    angles = torch.randn(num_rows, 1, rotary_dim // 2, generator=torch.Generator().manual_seed(2))
    cos, sin = angles.cos().to(BF16), angles.sin().to(BF16)
    cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    exact = torch_ops.rotary(heads.double(), cos.double(), sin.double())
    _assert_near(ops.rotary(heads, cos, sin), exact, sums=1e-6)


@pytest.mark.parametrize("num_heads", [0, 3])
@pytest.mark.parametrize("num_rows", ROWS)
def test_split_rotary_turns_queries_and_keys_and_leaves_values(ops: OpTable, num_rows: int, num_heads: int) -> None:
    num_all = num_heads + 4
    projected = _within_nan(_random(1, num_rows, num_all * 16))  # rows with a gap between them
    angles = torch.randn(num_rows, 1, 8, generator=torch.Generator().manual_seed(2))
    cos, sin = angles.cos().to(BF16), angles.sin().to(BF16)
    cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    exact = torch_ops.split_rotary(projected.double(), num_heads, 2, cos.double(), sin.double())
    found = ops.split_rotary(projected, num_heads, 2, cos, sin)
    assert [part.shape for part in found] == [(num_rows, num_heads, 16), (num_rows, 2, 16), (num_rows, 2, 16)]
    for own, expected in zip(found[0 if num_heads else 1 :], exact[0 if num_heads else 1 :], strict=True):
        _assert_near(own, expected, sums=1e-6)
    heads = projected.unflatten(1, (num_all, 16))
    turned = torch_ops.rotary(heads[:, :-2].double(), cos.double(), sin.double())
    expected_parts = (turned[:, :num_heads], turned[:, num_heads:], heads[:, -2:].double())
    assert all(torch.equal(one, other) for one, other in zip(exact, expected_parts, strict=True))


@pytest.mark.parametrize("size", [1, 17, 1536])
@pytest.mark.parametrize("num_rows", ROWS)
def test_activations_gate_the_second_half(ops: OpTable, num_rows: int, size: int) -> None:
    gate_up = _within_nan(3 * _random(1, num_rows, 2 * size))
    _assert_near(ops.silu_and_mul(gate_up), torch_ops.silu_and_mul(gate_up.double()), sums=1e-6)
    _assert_near(ops.gelu_tanh_and_mul(gate_up), torch_ops.gelu_tanh_and_mul(gate_up.double()), sums=1e-5)


def test_activations_are_right_at_the_ends_of_the_range(ops: OpTable) -> None:
    gate = torch.tensor([-3e38, -200.0, -88.0, -0.0, 0.0, 88.0, 200.0, 3e38, float("inf"), float("nan")])
    gate_up = torch.cat((gate, torch.ones_like(gate))).to(BF16).unsqueeze(0)
    for found in (ops.silu_and_mul(gate_up)[0], ops.gelu_tanh_and_mul(gate_up)[0]):
        assert found[:5].abs().max() < 1e-30
        assert torch.equal(found[5:9], gate.to(BF16)[5:9])
        assert found[9].isnan()


@pytest.mark.parametrize(
    "call",
    [
        lambda ops: ops.rms_norm(torch.ones(2, 4), torch.ones(4), 1e-5),
        lambda ops: ops.rms_norm(_random(1, 2, 4), torch.ones(5), 1e-5),
        lambda ops: ops.silu_and_mul(_random(1, 2, 5)),
        lambda ops: ops.pack_linear(_random(1, 4, 8), None).apply(_random(1, 2, 7)),
        lambda ops: ops.pack_linear(_random(1, 4, 8), None).apply(_random(1, 8, 2).T),
        lambda ops: ops.rotary(_random(1, 2, 3, 8), _random(1, 2, 1, 16), _random(1, 2, 1, 16)),
        lambda ops: ops.split_rotary(_random(1, 2, 41), 3, 1, _random(1, 2, 1, 8), _random(1, 2, 1, 8)),
    ],
)
def test_wrong_operands_are_refused(ops: OpTable, call: Callable[[OpTable], object]) -> None:
    with pytest.raises(RuntimeError, match=r"must|columns|needs"):
        call(ops)
