"""`quant=fp8`: a scale per tensor or per block, differing between the shards of a layer; whole models; refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.plugins.quant.checkpoint_packing import (
    CheckpointSuite,
    Encoded,
    Tensors,
    check_models,
    context,
    effective,
    linear_spec,
    load_layer,
    random,
    write_pair,
)
from tests.plugins.quant.format_encoders import encode_fp8_blocks, encode_fp8_tensor
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.quant import LayerSpec
from tokenloom_quant.fp8 import FP8Config

FP8 = torch.float8_e4m3fn
TENSOR: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCK: dict[str, Any] = {**TENSOR, "fmt": "e4m3", "weight_block_size": [128, 128]}


class TestRows(CheckpointSuite):
    """One scale for each output feature, as some checkpoints have it: rows of any size keep their digits."""

    plugin = "fp8"
    checkpoint = TENSOR
    max_relative_error = 2**-4 * 1.01

    def make_tensors(self, spec: LayerSpec, weight: torch.Tensor) -> Tensors:
        scale = (weight.abs().amax(dim=1, keepdim=True) / 448).clamp(min=1e-9)
        return {"weight": (weight / scale).to(FP8), "weight_scale": scale}


@pytest.mark.parametrize("num_columns", [128, 192, 300])
def test_blocks_of_fused_layers_keep_their_scales(num_columns: int) -> None:
    spec = linear_spec("model.layers.0.self_attn.qkv_proj", num_columns, 200, 128, 40)
    pairs = [
        encode_fp8_blocks("", random(seed, shard.out_features, num_columns)) for seed, shard in enumerate(spec.shards)
    ]
    shards = {shard.name: tensors for shard, (tensors, _) in zip(spec.shards, pairs)}
    layer = load_layer(FP8Config().build(context(BLOCK)), spec, shards)
    assert torch.equal(effective(layer, num_columns), torch.cat([dense for _, dense in pairs]).double())


def test_scales_that_are_powers_of_two_are_read() -> None:
    weight = random(1, 130, 128).to(FP8)
    powers = torch.tensor([[0.25], [8.0]])
    tensors = {"weight": weight, "weight_scale_inv": powers.to(torch.float8_e8m0fnu)}
    quantizer = FP8Config().build(context({**BLOCK, "scale_fmt": "ue8m0"}))
    layer = load_layer(quantizer, linear_spec("model.x_proj", 128, 130), {"x_proj": tensors})
    wanted = weight.float() * torch.tensor([0.25] * 128 + [8.0] * 2)[:, None]
    assert torch.equal(effective(layer, 128), wanted.double())


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_for_a_tensor_multiplies(name: str, shape: tuple[int, ...]) -> None:
    """Whatever it is called; each shard of a fused layer has its own. A stored scale of activations is not used."""
    spec = linear_spec("model.layers.0.self_attn.qkv_proj", 64, 16, 8, 8)
    shards: dict[str, Tensors] = {}
    wanted: list[torch.Tensor] = []
    for seed, shard in enumerate(spec.shards):
        tensors, dense = encode_fp8_tensor("", random(seed, shard.out_features, 64) * 10**seed)
        scale = tensors["weight_scale"].reshape(shape)
        shards[shard.name] = {"weight": tensors["weight"], name: scale, "input_scale": torch.ones(())}
        wanted.append(dense)
    layer = load_layer(FP8Config().build(context({**TENSOR, "activation_scheme": "static"})), spec, shards)
    assert torch.equal(effective(layer, 64), torch.cat(wanted).double())


@pytest.mark.parametrize("encode", [encode_fp8_tensor, encode_fp8_blocks])
@pytest.mark.parametrize("tied", [True, False])
def test_model_answers_as_the_dequantized_one(tmp_path: Path, encode: Any, tied: bool) -> None:
    settings = BLOCK if encode is encode_fp8_blocks else TENSOR
    settings = {**settings, "modules_to_not_convert": ["lm_head", "model.layers.1.mlp"]}

    def encode_some(part: str, weight: torch.Tensor) -> Encoded:
        plain: Encoded = ({"weight": weight}, weight)
        return plain if ".1.mlp." in part else encode(part, weight)

    check_models(*write_pair(tmp_path, settings, encode_some, tied=tied), FP8Config())


def test_what_happens_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    quantizer = FP8Config().build(context(BLOCK, torch.bfloat16))
    load_layer(quantizer, linear_spec("model.x_proj", 64, 8), {"x_proj": encode_fp8_blocks("", random(1, 8, 64))[0]})
    said = capsys.readouterr().err
    assert "quant=fp8 dequantizes weights to bfloat16\n" in said
    assert "quant=fp8 takes activations as they are" in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fmt": "e5m2"}, "of the type e4m3, got fmt 'e5m2'"),
        ({"is_checkpoint_fp8_serialized": False}, "choose quant=int8 to round at load"),
        ({"activation_scheme": "static"}, "'activation_scheme' must be 'dynamic' with blocks, got 'static'"),
        ({"activation_scheme": "none"}, "got 'none'"),
        ({"weight_block_size": [128]}, r"must be two sizes, such as \[128, 128\], got \[128\]"),
        ({"weight_block_size": [128, 0.5]}, "must be two sizes"),
    ],
)
def test_other_variants_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        FP8Config().build(context({**BLOCK, **changes}))


def test_other_methods_are_refused() -> None:
    with pytest.raises(ConfigError, match="got 'compressed-tensors'; try quant=compressed_tensors"):
        FP8Config().build(context({"quant_method": "compressed-tensors"}))


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        (BLOCK, {"weight_scale_inv": torch.ones(1, 2)}, r"'weight_scale_inv' must have the shape \[1, 1\]"),
        (TENSOR, {"weight_scale_inv": torch.ones(1, 2)}, "blocks need 'weight_block_size' in the settings"),
        (BLOCK, {"weight": torch.zeros(8, 64, dtype=torch.int8)}, "'weight' must be float8_e4m3fn, got int8"),
        (BLOCK, {"g_idx": torch.zeros(1)}, "holds 'g_idx'"),
    ],
)
def test_damaged_layers_are_refused(settings: dict[str, Any], change: Tensors, message: str) -> None:
    tensors = {**encode_fp8_blocks("", random(1, 8, 64))[0], **change}
    with pytest.raises(ModelError, match=message):
        load_layer(FP8Config().build(context(settings)), linear_spec("model.x_proj", 64, 8), {"x_proj": tensors})
