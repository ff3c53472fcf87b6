"""Products with codes of 4 and 8 bits against the reference, at every level of instructions that this machine has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pytest
import torch

from tests.plugins.quant.low_bit_levels import LEVELS, NEEDS_COMPILER, at_level
from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import LayerSpec, QuantConfig, QuantContext, Shard
from tokenloom.ops.weight_memory import WeightMemory
from tokenloom_quant.int4 import Int4Config
from tokenloom_quant.int8_dynamic import Int8DynamicConfig
from tokenloom_quant.low_bit.affine_codes import AffineCodes, round_to_codes
from tokenloom_quant.low_bit.kernels import load_kernels
from tokenloom_quant.low_bit.product import LowBitProduct
from tokenloom_quant.low_bit.reference import low_bit_linear, round_activations

pytestmark = NEEDS_COMPILER

BF16 = torch.bfloat16
ROWS = (0, 1, 2, 3, 7, 65, 300)
SIZES = ((1, 1), (33, 40), (130, 24), (576, 96), (96, 200))
FORMATS: tuple[tuple[Literal[4, 8], int | None, bool], ...] = (
    (8, None, True),
    (8, 32, True),
    (8, 16, False),
    (4, 16, True),
    (4, 32, True),
    (4, 32, False),
    (4, 128, False),
)
"""Bits, group size and whether there is no minimum."""


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with at_level(request.param):
        yield request.param


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _product(
    affine: AffineCodes,
    bias: torch.Tensor | None = None,
    *,
    rounds_activations: bool,
    activation_group: int | None = None,
) -> LowBitProduct:
    return LowBitProduct(
        affine,
        bias,
        rounds_activations=rounds_activations,
        memory=WeightMemory(),
        activation_group=activation_group,
    )


def _within_nan(values: torch.Tensor) -> torch.Tensor:
    """The same values in rows that lie in NaN: whoever reads past a row's end shows it."""
    around = torch.full((values.shape[0] + 2, values.shape[1] + 40), float("nan"), dtype=values.dtype)
    inside = around[1:-1, 3 : 3 + values.shape[1]]
    inside.copy_(values)
    return inside


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("rounds_activations", [False, True])
@pytest.mark.parametrize(("bits", "group_size", "symmetric"), FORMATS)
def test_product_equals_the_reference(
    bits: Literal[4, 8], group_size: int | None, symmetric: bool, rounds_activations: bool, dtype: torch.dtype
) -> None:
    for size, num_outputs in SIZES:
        affine = round_to_codes(_random(2, num_outputs, size), bits, group_size, symmetric=symmetric)
        bias = _random(3, num_outputs)
        packed = _product(affine, bias, rounds_activations=rounds_activations)
        for num_rows in ROWS:
            x = _within_nan(_random(num_rows, num_rows, size).to(dtype))
            exact = low_bit_linear(x, affine, bias, rounds_activations=rounds_activations)
            found = packed.apply_float32(x)
            assert found.dtype == torch.float32
            bound = 2e-6 * (x.double().abs() @ affine.dequantized().double().abs().T + 1.0)
            assert bool(((found - exact).abs() <= bound).all()), (size, num_outputs, num_rows)
            rounded = packed.apply(x)
            assert rounded.dtype == dtype
            assert torch.equal(rounded, found.to(dtype))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize(("bits", "symmetric"), [(8, True), (8, False), (4, True), (4, False)])
def test_activations_may_have_groups_where_weights_have_one(
    bits: Literal[4, 8], symmetric: bool, dtype: torch.dtype
) -> None:
    for (size, num_outputs), group_size in zip(SIZES, (8, 32, 64, 32, 16)):
        affine = round_to_codes(_random(2, num_outputs, size), bits, None, symmetric=symmetric)
        bias = _random(3, num_outputs)
        packed = _product(affine, bias, rounds_activations=True, activation_group=group_size)
        together = packed.apply_float32(_random(9, 300, size).to(dtype))
        for num_rows in ROWS:
            x = _within_nan(_random(9, 300, size).to(dtype)[:num_rows])
            rounded = round_activations(x, group_size).double()
            exact = rounded @ affine.dequantized().double().T + bias
            found = packed.apply_float32(x)
            bound = 2e-6 * (x.double().abs() @ affine.dequantized().double().abs().T + size + 1.0)
            assert bool(((found - exact).abs() <= bound).all()), (size, num_outputs, num_rows)
            assert torch.equal(found, together[:num_rows])


def test_groups_that_do_not_fit_are_refused() -> None:
    """The weights' groups may differ from the activations' only where the weights have one."""
    affine = round_to_codes(_random(2, 4, 128), 8, 32, symmetric=True)
    with pytest.raises(RuntimeError, match="must have the weights' groups"):
        _product(affine, rounds_activations=True, activation_group=64)


@pytest.mark.usefixtures("level")
def test_sums_of_int8_are_exact() -> None:
    """Activations that are whole numbers up to 127 have the scale 1: products are those of integers, at the ends of
    the range, too, where sums of 16 bits would overflow."""
    generator = torch.Generator().manual_seed(4)
    for size, num_outputs in ((64, 33), (576, 96), (1537, 5)):
        weight = torch.randint(-127, 128, (num_outputs, size), generator=generator)
        x = torch.randint(-127, 128, (65, size), generator=generator)
        weight[:2], x[:2] = 127, 127
        weight[2:4], x[2:4] = -127, -127
        weight[:, 0], x[:, 0] = 127, 127
        affine = AffineCodes((weight + 128).to(torch.uint8), torch.ones(num_outputs, 1), None, 8, size)
        packed = _product(affine, rounds_activations=True)
        for rows in (x, x[:1], x[1:4]):
            exact = rows @ weight.T
            assert int(exact.abs().max()) < 2**25
            assert torch.equal(packed.apply_float32(rows.float()), exact.float())


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_threads_share_rows_where_columns_are_few(num_threads: int) -> None:
    affine = round_to_codes(_random(2, 70, 512), 4, 32, symmetric=False)
    packed, x = _product(affine, rounds_activations=True), _random(1, 200, 512).to(BF16)
    exact = low_bit_linear(x, affine, None, rounds_activations=True)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        found = packed.apply_float32(x)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-3)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("rounds_activations", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize(("bits", "group_size", "symmetric"), FORMATS)
def test_rows_have_the_same_bits_in_any_batch(
    bits: Literal[4, 8], group_size: int | None, symmetric: bool, dtype: torch.dtype, rounds_activations: bool
) -> None:
    affine = round_to_codes(_random(2, 72, 130), bits, group_size, symmetric=symmetric)
    packed, x = _product(affine, rounds_activations=rounds_activations), _random(1, 300, 130).to(dtype)
    together = packed.apply_float32(x)
    for start, stop in ((0, 1), (299, 300), (3, 5), (7, 40), (100, 300)):
        assert torch.equal(packed.apply_float32(x[start:stop]), together[start:stop])


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("rounds_activations", [False, True])
def test_infinities_and_nan_stay_in_their_rows(rounds_activations: bool) -> None:
    x = _random(1, 8, 96).to(BF16)
    x[1, 3], x[2, 95], x[3, 0] = float("nan"), float("inf"), float("-inf")
    for group_size, activation_group in ((None, None), (32, None), (None, 32)):
        affine = round_to_codes(_random(2, 33, 96), 8, group_size, symmetric=True)
        packed = _product(affine, rounds_activations=rounds_activations, activation_group=activation_group)
        found = packed.apply(x)
        assert found[1].isnan().all()
        assert not found[2:4].isfinite().any()
        assert found[[0, 4, 5, 6, 7]].isfinite().all()


@pytest.mark.usefixtures("level")
def test_rows_of_zeros_and_tiny_numbers_are_finite() -> None:
    x = torch.zeros(3, 64)
    x[1, 5], x[2, 7] = 1e-38, 1e-20
    affine = round_to_codes(_random(2, 40, 64), 8, None, symmetric=True)
    found = _product(affine, rounds_activations=True).apply(x)
    assert torch.equal(found[:2], torch.zeros(2, 40))
    torch.testing.assert_close(found[2] * 1e20, affine.dequantized()[:, 7], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("bits", "group_size", "symmetric"), FORMATS)
def test_rows_of_the_table_are_the_weights(bits: Literal[4, 8], group_size: int | None, symmetric: bool) -> None:
    affine = round_to_codes(_random(2, 65, 130), bits, group_size, symmetric=symmetric)
    packed = _product(affine, rounds_activations=False)
    indices = torch.tensor([64, 0, 31, 32])
    assert torch.equal(packed.rows(indices), affine.dequantized()[indices])
    assert packed.rows(indices[:0]).shape == (0, 130)
    with pytest.raises(RuntimeError, match="row 65 of 65"):
        packed.rows(torch.tensor([65]))


def test_halves_below_the_normal_range_are_read_right() -> None:
    """Scales of GGUF files may be any float16; without F16C they are decoded by hand."""
    patterns = torch.tensor([0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, -0x8000, -0x7FFF, -0x4400], dtype=torch.int16)
    scale = patterns.view(torch.float16).unsqueeze(1)
    affine = AffineCodes(torch.full((9, 32), 9, dtype=torch.uint8), scale, None, 4, 32)
    packed, x = _product(affine, rounds_activations=False), torch.zeros(1, 32)
    x[0, 3] = 1.0
    for level in LEVELS:
        if load_kernels().set_isa(level):
            with at_level(level):
                assert torch.equal(packed.apply(x)[0], scale.float()[:, 0]), level


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 31), "x has 31 columns, the weights 32"),
        (torch.zeros(2, 32, dtype=torch.float16), "must be bfloat16 or float32"),
        (torch.zeros(32, 2).T, "must be contiguous"),
    ],
)
def test_wrong_operands_are_refused(x: torch.Tensor, message: str) -> None:
    packed = _product(round_to_codes(_random(2, 4, 32), 4, 32, symmetric=True), rounds_activations=False)
    with pytest.raises(RuntimeError, match=message):
        packed.apply(x)


def test_more_columns_than_sums_can_hold_are_refused() -> None:
    codes = torch.zeros(1, (1 << 17) + 8, dtype=torch.uint8)
    affine = AffineCodes(codes, torch.ones(1, 1), None, 8, codes.shape[1])
    with pytest.raises(ModelError, match="at most 65536 input features share a scale, got 131080"):
        _product(affine, rounds_activations=True)


@pytest.mark.parametrize("config", [Int8DynamicConfig(include_embedding=True), Int4Config(include_embedding=True)])
def test_heads_give_sums_that_are_not_rounded(config: QuantConfig) -> None:
    """Logits in bfloat16 tie often; a head's sums are fp32 whether it is tied or not."""
    quantizer = config.build(QuantContext(BF16, torch.device("cpu")))
    spec = LayerSpec("lm_head", "linear", 64, 40, (Shard("lm_head", 40),))
    x, weight = _random(1, 5, 64).to(BF16), _random(2, 40, 64)
    for layer in (quantizer.create_linear(spec), quantizer.create_embedding(replace(spec, kind="embedding"))):
        layer.load("lm_head", "weight", weight)
        layer.finalize()
        found = layer.apply_float32(x)
        assert found.dtype == torch.float32
        assert torch.equal(found.to(BF16), layer.apply(x))
        assert not torch.equal(found.to(BF16).float(), found)


@pytest.mark.parametrize("group_weights", [False, True])
def test_int8_dynamic_groups_weights_where_it_is_asked_to_and_in_heads(group_weights: bool) -> None:
    """A scale for each output channel alone costs a head more exactness than it does layers."""
    quantizer = Int8DynamicConfig(include_embedding=True, group_weights=group_weights).build(
        QuantContext(BF16, torch.device("cpu"))
    )
    weight = _random(2, 32, 64)
    weight[:, :32] *= 100.0  # what a group of its own saves from the large ones
    for name, is_grouped in (("model.layers.0.mlp.down_proj", group_weights), ("lm_head", True)):
        spec = LayerSpec(name, "linear", 64, 32, (Shard("w", 32),))
        layer = quantizer.create_linear(spec)
        layer.load("w", "weight", weight)
        layer.finalize()
        error = (layer.product.rows(torch.arange(32)) - weight)[:, 32:].abs().max()
        assert (float(error) < 0.05) == is_grouped, name
