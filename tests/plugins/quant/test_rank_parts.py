"""Layers split over ranks: each storage holds its part, and the parts are the whole layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize

from tests.core.models.split_layers import Axis, check_parts, split_specs, stored
from tests.plugins.quant.checkpoint_packing import Tensors, context, linear_spec, random, random_codes
from tests.plugins.quant.format_encoders import (
    AWQ_SETTINGS,
    DYNAMIC_TOKEN,
    GPTQ_SETTINGS,
    ct_settings,
    encode_awq,
    encode_bnb,
    encode_fp8_blocks,
    encode_fp8_tensor,
    encode_gptq,
    encode_int8,
    encode_packed,
    gptq_tensors,
    int_weights,
    shuffled_groups,
)
from tests.plugins.quant.low_bit_levels import NEEDS_COMPILER
from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import LayerSpec, QuantConfig, QuantContext, Shard
from tokenloom_quant.affine_layers import CheckpointLinear
from tokenloom_quant.awq import AWQConfig
from tokenloom_quant.bitsandbytes import BitsAndBytesConfig
from tokenloom_quant.compressed_tensors import CompressedTensorsConfig
from tokenloom_quant.fp8 import FP8Config
from tokenloom_quant.gguf import GGUFConfig
from tokenloom_quant.gptq import GPTQConfig
from tokenloom_quant.int4 import Int4Config
from tokenloom_quant.int8 import Int8Config
from tokenloom_quant.int8_dynamic import Int8DynamicConfig
from tokenloom_quant.low_bit.product import LowBitProduct

pytestmark = NEEDS_COMPILER
QKV = replace(linear_spec("model.layers.0.self_attn.qkv_proj", 192, 48, 16, 16), has_bias=True)
AXES: tuple[Axis, Axis] = ("output", "input")
ROUNDED_ROWS = 0.02
"""Products of rows that each rank rounds by its own part of them."""


@dataclass(frozen=True)
class Storage:
    """One form of weights: its plugin, the checkpoint's settings, and the tensors of a shard's weight."""

    config: QuantConfig
    encode: Callable[[torch.Tensor], Mapping[str, torch.Tensor]]
    settings: Mapping[str, Any]
    tolerance: float = 1e-4


def plain(weight: torch.Tensor) -> Tensors:
    return {"weight": weight}


def blocks(weight: torch.Tensor) -> Tensors:
    kind = gguf.GGMLQuantizationType.Q4_1
    return {"Q4_1": torch.from_numpy(np.ascontiguousarray(quantize(weight.numpy(), kind)))}


def reordered(weight: torch.Tensor) -> Tensors:
    """Groups of 64 columns that lie anywhere; the last may have fewer. Any codes of that shape."""
    num_rows, num_columns = weight.shape
    groups = shuffled_groups(3, num_columns, 64)
    num_groups = int(groups.max()) + 1
    codes, zero = random_codes(1, 15, num_rows, num_columns), random_codes(2, 15, num_rows, num_groups)
    scale = random(num_rows, num_rows, num_groups).abs().add(0.01).half()
    return gptq_tensors(codes, scale, zero, 4, group_index=groups)


def table_codes(weight: torch.Tensor) -> Tensors:
    tensors = encode_bnb(weight, nested=True)[0]
    return {("weight_codes" if name == "weight" else name.replace(".", "_")): each for name, each in tensors.items()}


def int8_rows(weight: torch.Tensor) -> Tensors:
    return {"weight": encode_int8(weight)[0]["weight"], "SCB": weight.abs().amax(dim=1)}


ACT_ORDER = {**GPTQ_SETTINGS, "group_size": 64, "desc_act": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BNB = {"quant_method": "bitsandbytes"}
STORAGES: Mapping[str, Storage] = {
    "int8": Storage(Int8Config(), plain, {}),
    "int8_dynamic": Storage(Int8DynamicConfig(), plain, {}),
    "int8_dynamic, one group": Storage(Int8DynamicConfig(group_size=0), plain, {}, ROUNDED_ROWS),
    "int4": Storage(Int4Config(), plain, {}),
    "int4, rounded activations": Storage(Int4Config(activations="int8", symmetric=True), plain, {}),
    "gguf": Storage(GGUFConfig(), blocks, {}),
    "gguf, plain": Storage(GGUFConfig(), plain, {}),
    "awq": Storage(AWQConfig(), lambda weight: encode_awq("", weight)[0], AWQ_SETTINGS),
    "gptq": Storage(GPTQConfig(), lambda weight: encode_gptq(4, 32, weight)[0], GPTQ_SETTINGS),
    "gptq, cut groups": Storage(
        GPTQConfig(), lambda weight: encode_gptq(8, 64, weight)[0], {**GPTQ_SETTINGS, "bits": 8, "group_size": 64}
    ),
    "gptq, act-order": Storage(GPTQConfig(weights="packed"), reordered, ACT_ORDER),
    "gptq, act-order, dense": Storage(GPTQConfig(weights="dense"), reordered, ACT_ORDER),
    "compressed_tensors": Storage(
        CompressedTensorsConfig(), lambda weight: encode_packed(4, 32, weight)[0], ct_settings(int_weights(4, 32))
    ),
    "W8A8": Storage(
        CompressedTensorsConfig(),
        lambda weight: encode_int8(weight)[0],
        ct_settings(int_weights(8, None), DYNAMIC_TOKEN, format="int-quantized"),
        ROUNDED_ROWS,
    ),
    "fp8 by tensor": Storage(FP8Config(), lambda weight: encode_fp8_tensor("", weight)[0], FP8),
    "fp8 by block": Storage(
        FP8Config(), lambda weight: encode_fp8_blocks("", weight)[0], {**FP8, "weight_block_size": [128, 128]}
    ),
    "fp8, left plain": Storage(FP8Config(), plain, FP8),
    "nf4": Storage(BitsAndBytesConfig(), table_codes, {**BNB, "load_in_4bit": True}),
    "LLM.int8": Storage(BitsAndBytesConfig(), int8_rows, {**BNB, "load_in_8bit": True}),
}


def context_of(storage: Storage) -> QuantContext:
    return replace(context(storage.settings), stored_types=frozenset({"Q4_1"}))


def encoded(storage: Storage, spec: LayerSpec) -> dict[str, Mapping[str, torch.Tensor]]:
    return {
        shard.name: storage.encode(random(seed, shard.out_features, spec.in_features))
        for seed, shard in enumerate(spec.shards)
    }


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", STORAGES)
def test_parts_are_the_whole_layer(name: str, axis: Axis) -> None:
    """Shards of a fused layer are cut each by itself; groups of 64 and blocks of 128 within them."""
    storage = STORAGES[name]
    quantizer = storage.config.build(context_of(storage))
    tensors = encoded(storage, QKV)
    layers = check_parts(quantizer.create_linear, QKV, axis, 2, tensors, tolerance=storage.tolerance)
    whole = stored(quantizer.create_linear, replace(QKV, has_bias=False), tensors)
    # Panels of 32 rows are filled up, and groups of columns in another order.
    assert all(layer.num_bytes < 0.9 * whole.num_bytes for layer in layers)


@pytest.mark.parametrize(("num_columns", "size"), [(176, 2), (240, 3)])
def test_reordered_columns_stay_packed_on_each_rank(num_columns: int, size: int) -> None:
    """The last group is shorter, and ranks have other numbers of columns of each."""
    storage = STORAGES["gptq, act-order"]
    quantizer = storage.config.build(context_of(storage))
    spec = replace(linear_spec("model.layers.0.mlp.down_proj", num_columns, 16), has_bias=True)
    layers = check_parts(quantizer.create_linear, spec, "input", size, encoded(storage, spec))
    for layer in layers:
        assert isinstance(layer, CheckpointLinear)
        assert [isinstance(linear, LowBitProduct) for linear in layer.linears] == [True]


@pytest.mark.parametrize(
    ("name", "axis", "size", "message"),
    [
        ("int8", "input", 5, "qkv_proj, shard q_proj: its 192 input features cannot be cut into 5 equal parts"),
        ("awq", "output", 3, "shard k_proj: its 16 output features cannot be cut into 3 equal parts"),
        ("int8_dynamic", "input", 4, "size of 4 cuts its 192 input features within groups of 32; .* 1, 2, 3, 6, or"),
        ("int4", "input", 12, r"within groups of 32; .* or leave the layer as it is \(quant\.skip\)"),
        ("gguf", "input", 4, "within groups of 32"),
    ],
)
def test_sizes_that_cut_what_must_stay_whole_are_refused(name: str, axis: Axis, size: int, message: str) -> None:
    storage = STORAGES[name]
    quantizer = storage.config.build(context_of(storage))
    with pytest.raises(ModelError, match=message):
        stored(quantizer.create_linear, replace(split_specs(QKV, axis, size)[0], has_bias=False), encoded(storage, QKV))


@pytest.mark.parametrize(
    ("config", "encode"),
    [
        (Int8Config(include_embedding=True), plain),
        (Int8DynamicConfig(include_embedding=True), plain),
        (GGUFConfig(), blocks),
    ],
    ids=["int8", "int8_dynamic", "gguf"],
)
def test_rows_of_an_embedding_come_from_one_rank(
    config: QuantConfig, encode: Callable[[torch.Tensor], Mapping[str, torch.Tensor]]
) -> None:
    quantizer = config.build(QuantContext(torch.float32, torch.device("cpu"), stored_types=frozenset({"Q4_1"})))
    spec = LayerSpec("model.embed_tokens", "embedding", 32, 42, (Shard("embed_tokens", 42),), axis="output", tied=True)
    tensors = {"embed_tokens": encode(random(1, 42, 32))}
    token_ids = torch.tensor([41, 0, 13, 14, 27, 28])
    x = random(2, 3, 32)
    whole = quantizer.create_embedding(spec)
    parts = [quantizer.create_embedding(each) for each in split_specs(spec, "output", 3)]
    for layer in (whole, *parts):
        for name, tensor in tensors["embed_tokens"].items():
            layer.load("embed_tokens", name, tensor)
        layer.finalize()
    rows = [part.lookup(token_ids) for part in parts]
    assert torch.equal(torch.stack(rows).sum(dim=0), whole.lookup(token_ids))
    assert [int(each.any(dim=1).sum()) for each in rows] == [2, 2, 2]
    torch.testing.assert_close(torch.cat([part.apply(x) for part in parts], dim=1), whole.apply(x))
