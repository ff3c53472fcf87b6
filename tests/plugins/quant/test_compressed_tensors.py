"""`quant=compressed_tensors`: each layout to the bit, rounding of activations, whole models, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from tests.plugins.quant.checkpoint_packing import (
    CheckpointSuite,
    Encoded,
    Tensors,
    check_models,
    context,
    dequantized,
    effective,
    linear_spec,
    load_layer,
    random,
    random_codes,
    rounded,
    write_pair,
)
from tests.plugins.quant.format_encoders import (
    DYNAMIC_TOKEN,
    STATIC_TENSOR,
    ct_settings,
    encode_int8,
    encode_packed,
    int_weights,
    packed_tensors,
)
from tests.plugins.quant.low_bit_levels import NEEDS_COMPILER
from tokenloom.interfaces.quant import LayerSpec
from tokenloom_quant.compressed_tensors import CompressedTensorsConfig
from tokenloom_quant.low_bit.product import LowBitProduct

STORAGES = ["dense", pytest.param("packed", marks=NEEDS_COMPILER)]
FP8 = torch.float8_e4m3fn


class PackedSuite(CheckpointSuite):
    plugin = "compressed_tensors"
    checkpoint = ct_settings(int_weights(4, 32), ignore=[])
    in_multiple = 32
    bits: ClassVar[int] = 4
    symmetric: ClassVar[bool] = True
    max_relative_error = 1.1 / 15

    def make_tensors(self, spec: LayerSpec, weight: torch.Tensor) -> Tensors:
        return encode_packed(self.bits, 32, weight, symmetric=self.symmetric)[0]


@NEEDS_COMPILER
class TestPackedAsymmetric(PackedSuite):
    """Any number of rows: those that do not fill a word of zero points, too."""

    checkpoint = ct_settings(int_weights(4, 32, symmetric=False), ignore=[])
    symmetric = False
    max_relative_error = 1.2 / 15


class TestDense8Bits(PackedSuite):
    settings = {"weights": "dense"}
    checkpoint = ct_settings(int_weights(8, 32), ignore=[])
    bits = 8
    max_relative_error = 0.01  # of a scale in bfloat16


class W8A8Suite(CheckpointSuite):
    plugin = "compressed_tensors"
    checkpoint = ct_settings(int_weights(8, None), DYNAMIC_TOKEN, format="int-quantized", ignore=[])
    max_activation_error = 0.5 / 127 * 1.01

    def make_tensors(self, spec: LayerSpec, weight: torch.Tensor) -> Tensors:
        return encode_int8(weight)[0]


@NEEDS_COMPILER
class TestW8A8(W8A8Suite):
    """The compiled product rounds activations."""


class TestW8A8Dense(W8A8Suite):
    settings = {"weights": "dense"}


@pytest.mark.parametrize("weights", STORAGES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("num_columns", "group_size"), [(96, 32), (136, None), (136, 64), (133, None)])
def test_packed_numbers_are_those_of_the_checkpoint(
    weights: Any, bits: int, symmetric: bool, num_columns: int, group_size: int | None
) -> None:
    size = num_columns if group_size is None else group_size
    num_groups = -(-num_columns // size)
    spec = linear_spec("model.layers.0.self_attn.qkv_proj", num_columns, 33, 7, 8)
    shards: dict[str, Tensors] = {}
    wanted: list[torch.Tensor] = []
    for seed, shard in enumerate(spec.shards):
        codes = random_codes(seed, 2**bits - 1, shard.out_features, num_columns)
        zero = random_codes(seed + 9, 2**bits - 1, shard.out_features, num_groups)
        zero = torch.full_like(zero, 2 ** (bits - 1)) if symmetric else zero
        scale = random(seed, shard.out_features, num_groups).abs().add(0.01).bfloat16()
        shards[shard.name] = packed_tensors(codes, scale, zero, bits, symmetric=symmetric)
        wanted.append(dequantized(codes, scale, zero, torch.arange(num_columns) // size))
    settings = ct_settings(int_weights(bits, group_size, symmetric=symmetric))
    layer = load_layer(CompressedTensorsConfig(weights=weights).build(context(settings)), spec, shards)
    assert torch.equal(effective(layer, num_columns), torch.cat(wanted))
    assert [isinstance(linear, LowBitProduct) for linear in layer.linears] == [weights == "packed"]


def test_word_that_the_format_publishes() -> None:
    """Eight neighbours of a row in plain order, 8 being zero."""
    tensors = {
        "weight_packed": torch.tensor([[0x7654_3210]], dtype=torch.int32),
        "weight_scale": torch.ones(1, 1),
        "weight_shape": torch.tensor([1, 8]),
    }
    quantizer = CompressedTensorsConfig(weights="dense").build(context(ct_settings(int_weights(4, None))))
    layer = load_layer(quantizer, linear_spec("model.x_proj", 8, 1), {"x_proj": tensors})
    assert effective(layer, 8)[0].tolist() == [-8, -7, -6, -5, -4, -3, -2, -1]


@pytest.mark.parametrize("weights", STORAGES)
@pytest.mark.parametrize("actorder", ["group", "dynamic", True, "weight", None])
def test_order_of_columns(weights: Any, actorder: Any) -> None:
    """A stored group index counts; one of -1 means that columns are in order."""
    is_stored = actorder in ("group", "dynamic", True)
    order = torch.randperm(96, generator=torch.Generator().manual_seed(1))
    groups = torch.empty(96, dtype=torch.int64)
    groups[order] = torch.arange(96) // 32
    stated = groups if is_stored else torch.arange(96) // 32
    codes, scale, zero = rounded(random(1, 9, 96), 4, 32, symmetric=True)
    tensors = packed_tensors(codes, scale, zero, 4, symmetric=True)
    if actorder != "weight":
        tensors["weight_g_idx"] = stated.int() if is_stored else torch.full((96,), -1, dtype=torch.int32)
    settings = ct_settings(int_weights(4, 32, actorder=actorder))
    quantizer = CompressedTensorsConfig(weights=weights).build(context(settings))
    layer = load_layer(quantizer, linear_spec("model.x_proj", 96, 9), {"x_proj": tensors})
    assert torch.equal(effective(layer, 96), dequantized(codes, scale.bfloat16(), zero, stated))


@pytest.mark.parametrize("weights", STORAGES)
@pytest.mark.parametrize(("scale", "zero"), [(2.0**-5, None), (2.0**-5, 17), (0.03, -128)])
def test_static_activations_are_rounded_with_the_stored_scale(weights: Any, scale: float, zero: int | None) -> None:
    """Beyond the range they are clamped, as calibration decided."""
    weight = random(1, 16, 64)
    tensors, numbers = encode_int8(weight)
    tensors["input_scale"] = torch.tensor([scale])
    if zero is not None:
        tensors["input_zero_point"] = torch.tensor([zero], dtype=torch.int8)
    settings = ct_settings(int_weights(8, None), {**STATIC_TENSOR, "symmetric": zero is None}, format="int-quantized")
    quantizer = CompressedTensorsConfig(weights=weights).build(context(settings))
    layer = load_layer(quantizer, linear_spec("model.x_proj", 64, 16), {"x_proj": tensors})
    x = random(2, 7, 64) * 3
    used = ((x / scale).round() + (zero or 0)).clamp(-128, 127) - (zero or 0)
    wanted = used.double() * torch.tensor(scale).double() @ numbers.T
    torch.testing.assert_close(layer.apply(x).double(), wanted, rtol=1e-5, atol=1e-4)


def test_small_static_scales_keep_their_digits_in_float16() -> None:
    """Weights times such a scale would lie below the normal numbers of float16."""
    tensors, numbers = encode_int8(random(1, 16, 64) * 0.01)
    tensors["input_scale"] = torch.tensor([2.0**-12])
    settings = ct_settings(int_weights(8, None), STATIC_TENSOR, format="int-quantized")
    quantizer = CompressedTensorsConfig().build(context(settings, torch.float16))
    layer = load_layer(quantizer, linear_spec("model.x_proj", 64, 16), {"x_proj": tensors})
    x = (random(2, 7, 64) * 0.01).half()
    wanted = (x.float() / 2.0**-12).round().clamp(-128, 127).double() * 2.0**-12 @ numbers.T
    torch.testing.assert_close(layer.apply(x).double(), wanted, rtol=5e-3, atol=2e-6)


@pytest.mark.parametrize("strategy", ["tensor", "channel", "group"])
def test_int8_weights_with_zero_points_and_any_strategy(strategy: str) -> None:
    shape = {"tensor": (1,), "channel": (16, 1), "group": (16, 2)}[strategy]
    codes = random_codes(1, 255, 16, 64) - 128
    zero = torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(2))
    scale = random(3, *shape).abs() + 0.1
    tensors = {"weight": codes.to(torch.int8), "weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}
    args = {"num_bits": 8, "strategy": strategy, "symmetric": False}
    settings = ct_settings(args | ({"group_size": 32} if strategy == "group" else {}), format="int-quantized")
    layer = load_layer(
        CompressedTensorsConfig().build(context(settings)), linear_spec("model.x_proj", 64, 16), {"x_proj": tensors}
    )
    wide_scale, wide_zero = (values.reshape(-1, shape[-1]).expand(16, -1) for values in (scale, zero))
    wanted = dequantized(codes, wide_scale, wide_zero, torch.arange(64) // (64 // shape[-1]))
    torch.testing.assert_close(effective(layer, 64), wanted, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("strategy", ["tensor", "channel", "group", "block"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floats_of_8_bits(strategy: str, dtype: torch.dtype, capsys: pytest.CaptureFixture[str]) -> None:
    """Dequantized to the model's dtype, which is said."""
    shape = {"tensor": (), "channel": (40, 1), "group": (40, 3), "block": (3, 3)}[strategy]
    weight = random(1, 40, 80).to(FP8)
    scale = random(2, *shape).abs() + 0.1
    sizes: dict[str, dict[str, Any]] = {"group": {"group_size": 32}, "block": {"block_structure": [16, 32]}}
    args = {"num_bits": 8, "type": "float", "strategy": strategy, **sizes.get(strategy, {})}
    settings = ct_settings(args, {**DYNAMIC_TOKEN, "type": "float"}, format="float-quantized")
    quantizer = CompressedTensorsConfig().build(context(settings, dtype))
    layer = load_layer(
        quantizer, linear_spec("model.x_proj", 80, 40), {"x_proj": {"weight": weight, "weight_scale": scale}}
    )
    wanted = torch.empty(40, 80)
    rows, columns = {"channel": (1, 80), "group": (1, 32), "block": (16, 32), "tensor": (40, 80)}[strategy]
    for row in range(40):
        for column in range(80):
            its_scale = scale if strategy == "tensor" else scale[row // rows, column // columns]
            wanted[row, column] = weight[row, column].float() * its_scale
    actual = layer.apply(torch.eye(80, dtype=dtype)).T
    assert torch.equal(actual, wanted.to(dtype))
    said = capsys.readouterr().err
    assert "takes activations as they are, where the checkpoint would round them" in said
    assert f"dequantizes weights to {str(dtype).removeprefix('torch.')}" in said


def _model_case(name: str) -> tuple[dict[str, Any], Any]:
    if name == "w4a16":
        return ct_settings(int_weights(4, 32)), lambda _, weight: encode_packed(4, 32, weight)
    if name == "w8a16":
        return ct_settings(int_weights(8, 32, symmetric=False)), lambda _, w: encode_packed(8, 32, w, symmetric=False)
    if name == "preset":
        groups = {"W8A16": ["re:.*mlp.*"], "group_1": {"targets": ["Linear"], "weights": int_weights(4, 64)}}

        def encode_by_name(part: str, weight: torch.Tensor) -> Encoded:
            return encode_packed(8, weight.shape[1], weight) if ".mlp." in part else encode_packed(4, 64, weight)

        return ct_settings(None, config_groups=groups), encode_by_name
    assert name == "fp8"
    args = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}

    def encode_fp8(_: str, weight: torch.Tensor) -> Encoded:
        scale = weight.abs().amax(dim=1, keepdim=True) / 448
        numbers = (weight / scale).to(FP8)
        return {"weight": numbers, "weight_scale": scale}, numbers.float() * scale

    return ct_settings(args, format="float-quantized"), encode_fp8


@pytest.mark.parametrize("name", ["w4a16", "w8a16", "preset", "fp8"])
def test_model_answers_as_the_dequantized_one(tmp_path: Path, name: str) -> None:
    settings, encode_layer = _model_case(name)
    quantized, plain = write_pair(tmp_path, settings, encode_layer, tied=False)
    check_models(quantized, plain, CompressedTensorsConfig())


def test_layers_that_are_ignored_stay_plain(tmp_path: Path) -> None:
    """By full name, by the start of one, and by a regular expression."""
    ignore = ["lm_head", "model.layers.0.mlp.down_proj", "re:.*self_attn.*"]

    def encode_some(part: str, weight: torch.Tensor) -> Encoded:
        is_plain = "self_attn" in part or part == ignore[1]
        return ({"weight": weight}, weight) if is_plain else encode_packed(4, 32, weight)

    settings = ct_settings(int_weights(4, 32), ignore=ignore)
    check_models(*write_pair(tmp_path, settings, encode_some, tied=False), CompressedTensorsConfig())


def test_a_head_that_is_not_ignored_is_quantized(tmp_path: Path) -> None:
    settings = ct_settings(int_weights(4, 32), ignore=[])
    pair = write_pair(tmp_path, settings, lambda _, weight: encode_packed(4, 32, weight), tied=False, head=True)
    check_models(*pair, CompressedTensorsConfig())
