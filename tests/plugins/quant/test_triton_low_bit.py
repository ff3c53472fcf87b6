"""The Triton products with packed weights, run by its interpreter: against plain PyTorch, and under the readers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from tests.plugins.quant.checkpoint_packing import (
    CPU,
    Tensors,
    context,
    dequantized,
    linear_spec,
    load_layer,
    random,
    rounded,
    write_pair,
)
from tests.plugins.quant.format_encoders import (
    AWQ_SETTINGS,
    GPTQ_SETTINGS,
    ct_settings,
    encode_awq,
    encode_fp8_blocks,
    encode_fp8_tensor,
    encode_gptq,
    gptq_tensors,
    shuffled_groups,
)
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.quant import QuantConfig, QuantContext
from tokenloom.llm import LLM
from tokenloom.ops.kernel_launch import KernelLaunch
from tokenloom.ops.triton_card import Card
from tokenloom.sampling_params import SamplingParams
from tokenloom_quant.awq import AWQConfig
from tokenloom_quant.compressed_tensors import CompressedTensorsConfig
from tokenloom_quant.fp8 import FP8Config
from tokenloom_quant.gptq import GPTQConfig
from tokenloom_quant.low_bit.affine_codes import AffineCodes, round_to_codes
from tokenloom_quant.triton_low_bit import reference, sized_launches
from tokenloom_quant.triton_low_bit.launches import grouped_launches, grouped_product, round_rows, scaled_product
from tokenloom_quant.triton_low_bit.packing import pack_codes, pack_eight_bits
from tokenloom_quant.triton_low_bit.products import CodesProduct, EightBitProduct
from tokenloom_quant.triton_low_bit.tiles import Work, plan_splits, tiles_for, why_not_e4m3

E4M3 = torch.float8_e4m3fn
FP8_TENSOR: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
FP8_BLOCK: dict[str, Any] = {**FP8_TENSOR, "weight_block_size": [128, 128]}
TOLERANCES = {torch.float32: 1e-6, torch.float16: 2.0**-10}
"""Relative, of the largest result; the interpreter cannot round to bfloat16."""


def within_nan(x: torch.Tensor) -> torch.Tensor:
    """The same rows, strided, with NaN around them: whoever reads beyond a row's end shows it."""
    around = torch.full((x.shape[0] + 2, x.shape[1] + 40), float("nan"), dtype=x.dtype)
    inside = around[1:-1, 3 : 3 + x.shape[1]]
    inside.copy_(x)
    return inside


def assert_near(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert found.shape == wanted.shape
    assert bool(found.isfinite().all())
    if wanted.numel():
        assert (found.double() - wanted).abs().max() <= tolerance * wanted.abs().max()


def codes_of(
    bits: Literal[4, 8], num_rows: int, num_columns: int, group_size: int | None, *, symmetric: bool
) -> AffineCodes:
    return round_to_codes(random(1, num_rows, num_columns), bits, group_size, symmetric=symmetric)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("num_features", "num_columns", "group_size", "symmetric"),
    [
        (33, 130, 16, True),
        (129, 192, 32, False),
        (17, 200, 64, False),
        (5, 300, 128, True),
        (7, 96, 96, False),
        (9, 75, None, False),
    ],
)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_codes_are_multiplied_as_they_are(
    bits: Literal[4, 8],
    num_features: int,
    num_columns: int,
    group_size: int | None,
    symmetric: bool,
    dtype: torch.dtype,
) -> None:
    """Groups of each kind: two to a step, one, several steps to a group, one for all; sizes that fill no tile."""
    affine = codes_of(bits, num_features, num_columns, group_size, symmetric=symmetric)
    weight, bias = pack_codes(affine, CPU), random(2, num_features).to(dtype)
    for num_rows in (0, 1, 17):
        x = within_nan(random(3, num_rows, num_columns).to(dtype))
        wanted = reference.grouped_product(x, affine, bias)
        for out_dtype in (dtype, torch.float32):
            found = grouped_product(x, weight, bias, out_dtype, deterministic=False)
            assert found.dtype == out_dtype
            assert_near(found, wanted, TOLERANCES[out_dtype])


@pytest.mark.parametrize("bits", [4, 8])
def test_sums_that_are_split_are_added_in_order(bits: Literal[4, 8]) -> None:
    affine = codes_of(bits, 130, 1100, 32, symmetric=False)
    weight, x = pack_codes(affine, CPU), random(3, 3, 1100)
    out = torch.empty(3, 130)
    split = grouped_launches(out, x, weight, None, Card("interpreter", 16), deterministic=False)
    assert split[0].grid[2] > 3
    for launch in split:
        launch.run()
    assert_near(out, reference.grouped_product(x, affine, None), 1e-6)


def test_launches_are_made_once_for_all_layers_and_steps_of_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []

    def counting(kernel: Any, grid: tuple[int, ...], **parts: Any) -> KernelLaunch:
        made.append(grid)
        return KernelLaunch(kernel, grid, **parts)

    monkeypatch.setattr(sized_launches, "KernelLaunch", counting)
    codes, scale = reference.round_rows(random(1, 18, 98), torch.int8, 98)
    layers = [pack_codes(codes_of(4, 19, 98, None, symmetric=True), CPU) for _ in range(2)]
    eight_bits = pack_eight_bits(codes, scale, 98, CPU)
    for _ in range(2):
        for weight in layers:
            grouped_product(random(3, 2, 98), weight, None, torch.float32, deterministic=True)
        rows, row_scale = round_rows(random(3, 2, 98), torch.int8, eight_bits)
        scaled_product(rows, row_scale, eight_bits, None, torch.float32, deterministic=True)
    assert len(made) == 3


@pytest.mark.parametrize("dtype", [torch.int8, E4M3])
@pytest.mark.parametrize(
    ("num_features", "num_columns", "group_size"), [(33, 130, None), (129, 290, 32), (17, 300, 128)]
)
def test_eight_bits_times_eight_bits(
    dtype: torch.dtype, num_features: int, num_columns: int, group_size: int | None
) -> None:
    size = group_size or num_columns
    codes, scale = reference.round_rows(random(1, num_features, num_columns), dtype, size)
    weight, bias = pack_eight_bits(codes, scale, size, CPU), random(2, num_features)
    for num_rows in (0, 1, 17):
        x = random(3, num_rows, num_columns)
        x[1:2] = 0.0
        found, row_scale = round_rows(within_nan(x), dtype, weight)
        wanted, wanted_scale = reference.round_rows(x, dtype, size)
        assert torch.equal(row_scale, wanted_scale)
        assert not bool(found[:, num_columns:].float().any())
        # The interpreter rounds a few in a hundred e4m3 to the neighbour of the nearest.
        num_other = int((found[:, :num_columns].float() != wanted.float()).sum())
        assert num_other == 0 if dtype == torch.int8 else num_other <= 0.05 * wanted.numel()
        product = scaled_product(found, row_scale, weight, bias, torch.float32, deterministic=True)
        exact = reference.scaled_product(found[:, :num_columns], row_scale, codes, scale, bias, size)
        assert_near(product, exact, 1e-6)


def test_a_row_is_what_it_is_alone_in_deterministic_products() -> None:
    affine = codes_of(4, 40, 300, 64, symmetric=False)
    weight, x = pack_codes(affine, CPU), random(3, 70, 300)
    together = grouped_product(x, weight, None, torch.float32, deterministic=True)
    assert torch.equal(together[5:6], grouped_product(x[5:6], weight, None, torch.float32, deterministic=True))
    card = Card("sm_90", 132)
    for num_rows in (1, 17, 4096):
        tiles = tiles_for("sm_90", num_rows, torch.bfloat16, deterministic=True)
        assert tiles == tiles_for("sm_90", 1, torch.bfloat16, deterministic=True)
        few, many = (plan_splits(card, Work(rows, 4096, 32), tiles, deterministic=True) for rows in (1, num_rows))
        assert few == many


@pytest.mark.parametrize(("num_rows", "num_steps"), [(1, 1), (1, 7), (1, 32), (1, 500), (4096, 32)])
def test_no_split_is_empty(num_rows: int, num_steps: int) -> None:
    tiles = tiles_for("sm_90", num_rows, torch.bfloat16, deterministic=False)
    num_splits, steps = plan_splits(Card("sm_90", 132), Work(num_rows, 4096, num_steps), tiles, deterministic=False)
    assert (num_splits - 1) * steps < num_steps <= num_splits * steps


def triton_context(settings: dict[str, Any], dtype: torch.dtype = torch.float32) -> QuantContext:
    return replace(context(settings, dtype), operations="triton")


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_gptq_in_another_order_runs_packed(dtype: torch.dtype) -> None:
    """float16 as well, which the products of the CPU do not take."""
    groups = shuffled_groups(1, 64, 32)
    spec, settings = linear_spec("model.x_proj", 64, 24), {**GPTQ_SETTINGS, "desc_act": True}
    tensors, dense = _gptq(groups)
    quantizer = GPTQConfig(weights="packed").build(triton_context(settings, dtype))
    layer = load_layer(quantizer, spec, {"x_proj": tensors})
    assert isinstance(layer.linears[0], CodesProduct)
    assert quantizer.remarks == ("multiplies packed weights of 4 bits",)
    x = random(5, 3, 64).to(dtype)
    assert_near(layer.apply(x), x.double() @ dense.T, TOLERANCES[dtype])
    assert layer.num_bytes < 24 * 64 * 6  # with room for a whole tile of features


def _gptq(groups: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, scale, zero = rounded(random(1, 24, 64), 4, 32, symmetric=False)
    return gptq_tensors(codes, scale, zero, 4, group_index=groups), dequantized(codes, scale, zero, groups)


def test_w8a8_rounds_each_row_by_itself() -> None:
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "strategy": "channel"},
        "input_activations": {"num_bits": 8, "strategy": "token", "dynamic": True},
    }
    settings = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": group}}
    codes, scale = reference.round_rows(random(1, 24, 70), torch.int8, 70)
    quantizer = CompressedTensorsConfig(weights="packed").build(triton_context(settings))
    layer = load_layer(
        quantizer, linear_spec("model.x_proj", 70, 24), {"x_proj": {"weight": codes, "weight_scale": scale}}
    )
    assert isinstance(layer.linears[0], EightBitProduct)
    x = random(2, 5, 70)
    rounded, row_scale = reference.round_rows(x, torch.int8, 70)
    assert_near(layer.apply(x), reference.scaled_product(rounded, row_scale, codes, scale, None, 70), 1e-6)


@pytest.mark.parametrize("encode", [encode_fp8_tensor, encode_fp8_blocks])
def test_fp8_rounds_activations_where_the_card_can(encode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = FP8_BLOCK if encode is encode_fp8_blocks else FP8_TENSOR
    spec = linear_spec("model.layers.0.self_attn.qkv_proj", 160, 40, 8, 8)
    pairs = {shard.name: encode("", random(seed, shard.out_features, 160)) for seed, shard in enumerate(spec.shards)}
    quantizer = FP8Config().build(triton_context(settings))
    layer = load_layer(quantizer, spec, {name: tensors for name, (tensors, _) in pairs.items()})
    assert isinstance(layer.linears[0], EightBitProduct)
    assert "rounds activations to 8-bit floats, each row by itself" in quantizer.remarks
    x = random(9, 5, 160)
    exact = x.double() @ torch.cat([dense for _, dense in pairs.values()]).double().T
    assert_near(layer.apply(x), exact, 0.1)  # the interpreter rounds to e4m3 a bit worse than a card
    assert layer.num_bytes < 56 * 160 * 1.2 + 4096

    monkeypatch.setattr("tokenloom_quant.triton_low_bit.products.card_of", lambda _: Card("sm_80", 108))
    quantizer = FP8Config().build(triton_context(settings))
    layer = load_layer(quantizer, spec, {name: tensors for name, (tensors, _) in pairs.items()})
    assert_near(layer.apply(x), exact, 1e-6)
    assert any("from compute capability 8.9 on, got sm_80" in remark for remark in quantizer.remarks)


def test_what_must_stay_packed_is_refused_by_card(monkeypatch: pytest.MonkeyPatch) -> None:
    activations = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    settings = ct_settings(weights, activations, format="float-quantized")
    codes, scale = reference.round_rows(random(1, 24, 64), E4M3, 64)
    monkeypatch.setattr("tokenloom_quant.triton_low_bit.products.card_of", lambda _: Card("sm_80", 108))
    quantizer = CompressedTensorsConfig(weights="packed").build(triton_context(settings))
    with pytest.raises(ModelError, match=r"x_proj: products of 8-bit floats need a GPU with e4m3.*got sm_80; quant\.w"):
        load_layer(quantizer, linear_spec("model.x_proj", 64, 24), {"x_proj": {"weight": codes, "weight_scale": scale}})


def test_cards_without_e4m3_are_named() -> None:
    for card in ("sm_70", "sm_80", "gfx942", "gfx1100"):
        assert f"got {card}" in str(why_not_e4m3(card))
    assert [why_not_e4m3(card) for card in ("sm_89", "sm_90", "sm_120", "gfx950", "interpreter")] == [None] * 5


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # a code of NaN, which its scale hides
def test_a_row_with_nan_is_nan_and_spoils_no_other() -> None:
    weight = pack_eight_bits(torch.ones(3, 5, dtype=torch.int8), torch.ones(3, 1), 5, torch.device("cpu"))
    x = random(1, 3, 5)
    x[0, 2] = torch.nan
    codes, scale = round_rows(x, torch.int8, weight)
    result = scaled_product(codes, scale, weight, None, torch.float32, deterministic=False)
    assert result.isnan().all(dim=1).tolist() == [True, False, False]
    assert bool(result[1:].isfinite().all())


def test_packed_weights_on_cuda_need_triton_s_operations() -> None:
    on_cuda = replace(context(AWQ_SETTINGS, torch.bfloat16), device=torch.device("cuda"))
    with pytest.raises(ConfigError, match=r"packed products on cuda are Triton's, got engine\.operations=torch"):
        AWQConfig(weights="packed").build(on_cuda)
    assert AWQConfig().build(on_cuda).remarks[0].startswith("keeps no weights packed")


@pytest.mark.parametrize(
    ("settings", "encode", "config"),
    [
        (AWQ_SETTINGS, encode_awq, "awq"),
        (GPTQ_SETTINGS, lambda _, weight: encode_gptq(8, 32, weight), "gptq"),
    ],
)
def test_an_engine_runs_packed_weights_by_triton(
    tmp_path: Path, settings: dict[str, Any], encode: Any, config: str
) -> None:
    """Whole models in the interpreter, token by token as the dequantized one; what stays packed is told."""
    quantized, plain = write_pair(
        tmp_path, {**settings, "bits": 8} if config == "gptq" else settings, encode, with_tokenizer=True
    )
    base = ("cache.num_blocks=9", "engine.num_threads=1", "model.max_model_len=64", "attention=torch_sdpa")
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    own = (f"quant={config}", "engine.operations=triton")
    with (
        LLM(str(quantized), (*base, *own), show_progress=False) as packed,
        LLM(str(plain), base, show_progress=False) as dense,
    ):
        bits = 8 if config == "gptq" else 4
        assert packed.engine.facts.weight_remarks == (f"multiplies packed weights of {bits} bits",)
        assert dense.engine.facts.weight_remarks == ()
        tokens = [llm.generate([5, 9, 2, 40, 7], params)[0].outputs[0].token_ids for llm in (packed, dense)]
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 4


def test_every_reader_has_the_setting() -> None:
    for config in (AWQConfig, GPTQConfig, CompressedTensorsConfig, FP8Config):
        assert issubclass(config, QuantConfig)
        assert config().weights == "auto"
