"""What `quant=compressed_tensors` refuses, by name: variants in the settings, and layers that do not fit them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.plugins.quant.checkpoint_packing import Tensors, context, linear_spec, load_layer, random
from tests.plugins.quant.format_encoders import DYNAMIC_TOKEN, STATIC_TENSOR, ct_settings, encode_packed, int_weights
from tokenloom.errors import ConfigError, ModelError
from tokenloom_quant.compressed_tensors import CompressedTensorsConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ct_settings(int_weights(4, 32), format="marlin-24"), "is stored as 'marlin-24'; readable are pack-quantized"),
        (ct_settings(int_weights(4, 32), format="nvfp4-pack-quantized"), "'nvfp4-pack-quantized'"),
        (ct_settings(int_weights(4, 32), quantization_status="frozen"), "quantization_status 'frozen'; save it compr"),
        (ct_settings(int_weights(4, 32), kv_cache_scheme={"num_bits": 4}), "kv_cache_scheme of 4 bits by 'tensor'"),
        (
            ct_settings(int_weights(4, 32), kv_cache_scheme={"num_bits": 8, "symmetric": False}),
            "symmetric=False; readable are symmetric ones of 8 bits",
        ),
        (ct_settings(int_weights(4, 32), sparsity_config={"format": "sparse-bitmask"}), "sparse-bitmask"),
        (ct_settings(int_weights(4, 32), transform_config={"a": {}}), "has a transform_config"),
        (ct_settings(int_weights(3, 32)), "weights of 3-bit int; readable are int 4, int 8 and float 8"),
        (ct_settings({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 16}), "4-bit float"),
        (ct_settings(int_weights(4, 32), DYNAMIC_TOKEN), "8-bit int activations with 4-bit int weights"),
        (ct_settings(int_weights(8, None), {**DYNAMIC_TOKEN, "strategy": "tensor"}), "dynamic activations by 'tensor'"),
        (
            ct_settings(int_weights(8, None), {**STATIC_TENSOR, "strategy": "channel"}),
            "static activations by 'channel'",
        ),
        (ct_settings(int_weights(8, None), {**DYNAMIC_TOKEN, "dynamic": "local"}), "dynamic='local'"),
        (ct_settings(int_weights(8, None, strategy="attn_head")), "weights by 'attn_head'"),
        (ct_settings(None, config_groups={"NVFP4": ["Linear"]}), "names the scheme 'NVFP4'; known are W8A16"),
        (ct_settings(None, config_groups={}), "lacks 'config_groups'"),
        (
            ct_settings(None, config_groups={"g": {"targets": ["Embedding"], "weights": int_weights(8, None)}}),
            "group 'g' is for the layers 'Embedding'",
        ),
        (
            ct_settings(None, config_groups={"g": {"targets": ["re:("], "weights": int_weights(8, None)}}),
            "no regular expression",
        ),
    ],
)
def test_other_variants_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        CompressedTensorsConfig().build(context(settings))


def test_other_methods_are_refused() -> None:
    with pytest.raises(ConfigError, match="got 'fp8'; try quant=fp8"):
        CompressedTensorsConfig().build(context({"quant_method": "fp8"}))


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({}, {"weight_shape": torch.tensor([64, 8])}, r"'weight_shape' is \[64, 8\]; the model's config asks for \[8"),
        ({}, {"weight_scale": torch.ones(8, 3)}, "must be 16 numbers for 8 rows and 2 groups"),
        ({"actorder": "group"}, {}, r"model\.x_proj: lacks 'weight_g_idx'"),
        ({}, {"weight_g_idx": torch.arange(64).int() // 16}, "cannot be right: its groups have other sizes than 32"),
        ({"symmetric": False}, {}, "lacks the tensor 'weight_zero_point'"),
        ({}, {"output_scale": torch.ones(1)}, "holds 'output_scale', which the format's settings give no meaning to"),
    ],
)
def test_damaged_layers_are_refused(settings: dict[str, Any], change: Tensors, message: str) -> None:
    tensors = {**encode_packed(4, 32, random(1, 8, 64))[0], **change}
    quantizer = CompressedTensorsConfig(weights="dense").build(context(ct_settings(int_weights(4, 32, **settings))))
    with pytest.raises(ModelError, match=message):
        load_layer(quantizer, linear_spec("model.x_proj", 64, 8), {"x_proj": tensors})


def test_packed_weights_of_8_bits_with_rounded_activations_are_refused() -> None:
    settings = ct_settings(int_weights(8, 32), DYNAMIC_TOKEN)
    quantizer = CompressedTensorsConfig(weights="dense").build(context(settings))
    tensors = {"x_proj": encode_packed(8, 32, random(1, 8, 64))[0]}
    with pytest.raises(ModelError, match="take W8A8 as 'int-quantized', or W4A16"):
        load_layer(quantizer, linear_spec("model.x_proj", 64, 8), tensors)
