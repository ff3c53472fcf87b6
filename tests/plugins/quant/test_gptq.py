"""`quant=gptq`: both versions of the layout, all numbers of bits, any order of columns, overrides, refusals."""

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
from tests.plugins.quant.format_encoders import GPTQ_SETTINGS, encode_gptq, gptq_tensors, shuffled_groups
from tests.plugins.quant.low_bit_levels import NEEDS_COMPILER
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.quant import LayerSpec
from tokenloom_quant.gptq import GPTQConfig
from tokenloom_quant.low_bit.product import LowBitProduct

STORAGES = ["dense", pytest.param("packed", marks=NEEDS_COMPILER)]


class GPTQSuite(CheckpointSuite):
    plugin = "gptq"
    checkpoint = GPTQ_SETTINGS
    in_multiple = 32
    out_multiple = 8
    bits: ClassVar[int] = 4
    max_relative_error = 1.05 / 15

    def make_tensors(self, spec: LayerSpec, weight: torch.Tensor) -> Tensors:
        return encode_gptq(self.bits, 32, weight)[0]


@NEEDS_COMPILER
class TestPacked(GPTQSuite):
    """float16 has no packed product: there `auto` dequantizes."""


@NEEDS_COMPILER
class TestPackedReordered(GPTQSuite):
    """Columns come in another order, the same for all shards of a layer."""

    checkpoint = {**GPTQ_SETTINGS, "desc_act": True}

    def make_tensors(self, spec: LayerSpec, weight: torch.Tensor) -> Tensors:
        groups = shuffled_groups(3, weight.shape[1], 32)
        codes, scale, zero = rounded(weight[:, groups.argsort(stable=True)], 4, 32, symmetric=True)
        back = groups.argsort(stable=True).argsort()
        return gptq_tensors(codes[:, back], scale, zero, 4, group_index=groups)


class TestDense8Bits(GPTQSuite):
    settings = {"weights": "dense"}
    checkpoint = {**GPTQ_SETTINGS, "bits": 8}
    out_multiple = 4
    bits = 8
    max_relative_error = 1.2 / 255


@pytest.mark.parametrize("weights", STORAGES)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("reordered", [False, True])
def test_numbers_are_those_of_the_checkpoint(weights: Any, version: int, bits: int, reordered: bool) -> None:
    """Every code and every zero point from 0 to the largest; groups that K does not divide into evenly."""
    num_columns, size, most = 160, 64, 2**bits - 1
    spec = linear_spec("model.layers.0.self_attn.qkv_proj", num_columns, 64, 32, 32)
    groups = shuffled_groups(1, num_columns, size) if reordered else torch.arange(num_columns) // size
    shards: dict[str, Tensors] = {}
    wanted: list[torch.Tensor] = []
    for seed, shard in enumerate(spec.shards):
        codes = random_codes(seed, most, shard.out_features, num_columns)
        zero = random_codes(seed + 9, most, shard.out_features, 3)
        scale = random(seed, shard.out_features, 3).abs().add(0.01).half()
        shards[shard.name] = gptq_tensors(codes, scale, zero, bits, group_index=groups, version=version)
        wanted.append(dequantized(codes, scale, zero, groups))
    layout = "gptq" if version == 1 else "gptq_v2"
    changes = {"bits": bits, "group_size": size, "desc_act": reordered, "checkpoint_format": layout}
    quantizer = GPTQConfig(weights=weights).build(context({**GPTQ_SETTINGS, **changes}))
    layer = load_layer(quantizer, spec, shards)
    assert torch.equal(effective(layer, num_columns), torch.cat(wanted))
    assert [isinstance(linear, LowBitProduct) for linear in layer.linears] == [weights == "packed"]


def test_words_that_the_format_publishes() -> None:
    """Version 1 of a symmetric checkpoint in 4 bits stores 7 for the zero point 8, version 2 stores 8."""
    tensors = {
        "qweight": torch.full((4, 8), 0x7654_3210, dtype=torch.int32),
        "scales": torch.ones(1, 8, dtype=torch.float16),
    }
    spec = linear_spec("model.x_proj", 32, 8)
    for layout, zeros in (("gptq", 0x7777_7777), ("gptq_v2", 0x8888_8888 - (1 << 32))):
        quantizer = GPTQConfig(weights="dense").build(context({**GPTQ_SETTINGS, "checkpoint_format": layout}))
        qzeros = torch.full((1, 1), zeros, dtype=torch.int32)
        layer = load_layer(quantizer, spec, {"x_proj": {**tensors, "qzeros": qzeros}})
        assert effective(layer, 32)[3].tolist() == [code - 8 for code in range(8)] * 4


def test_three_bits_straddle_words() -> None:
    """32 numbers lie in three words: the tenth in two of them, and the twenty-first."""
    spec = linear_spec("model.x_proj", 32, 32)
    words = torch.tensor([1 << 30, 1 | 1 << 1, 3], dtype=torch.int32)  # 1 + 4 at 10, 1 at 11, 2 + 4 at 21
    tensors = {
        "qweight": words[:, None].repeat(1, 32),
        "qzeros": torch.zeros(1, 3, dtype=torch.int32),
        "scales": torch.ones(1, 32, dtype=torch.float16),
    }
    settings = {**GPTQ_SETTINGS, "bits": 3, "checkpoint_format": "gptq_v2"}
    layer = load_layer(GPTQConfig(weights="dense").build(context(settings)), spec, {"x_proj": tensors})
    wanted = torch.zeros(32, dtype=torch.float64)
    wanted[10], wanted[11], wanted[21] = 5, 1, 6
    assert torch.equal(effective(layer, 32)[7], wanted)


@pytest.mark.parametrize("weights", STORAGES)
def test_shards_in_different_orders_are_products_of_their_own(weights: Any) -> None:
    spec = linear_spec("model.layers.0.self_attn.qkv_proj", 64, 16, 8, 8)
    shards: dict[str, Tensors] = {}
    wanted: list[torch.Tensor] = []
    for seed, shard in zip((1, 1, 2), spec.shards):
        groups = shuffled_groups(seed, 64, 32)
        codes, scale, zero = rounded(random(seed, shard.out_features, 64), 4, 32, symmetric=True)
        shards[shard.name] = gptq_tensors(codes, scale, zero, 4, group_index=groups)
        wanted.append(dequantized(codes, scale, zero, groups))
    layer = load_layer(GPTQConfig(weights=weights).build(context({**GPTQ_SETTINGS, "desc_act": True})), spec, shards)
    assert torch.equal(effective(layer, 64), torch.cat(wanted))
    assert len(layer.linears) == (2 if weights == "packed" else 1)


@pytest.mark.parametrize("num_columns", [128, 192, 2752])
@pytest.mark.parametrize("group_size", [-1, 32, 64, 128])
def test_group_sizes_that_do_not_divide_are_right(num_columns: int, group_size: int) -> None:
    """The last group has fewer columns; -1 is one group, and a tensor g_idx of zeros with it means nothing else."""
    size = num_columns if group_size == -1 else group_size
    groups = torch.arange(num_columns) // size
    num_groups = int(groups.max()) + 1
    codes = random_codes(1, 15, 8, num_columns)
    scale, zero = random(2, 8, num_groups).abs().add(0.1).half(), random_codes(3, 15, 8, num_groups)
    for group_index in (groups, None, torch.zeros(num_columns)):
        if group_index is not None and group_size != -1 and not bool(group_index.any()) and num_groups > 1:
            continue
        tensors = gptq_tensors(codes, scale, zero, 4, group_index=group_index)
        quantizer = GPTQConfig(weights="dense").build(context({**GPTQ_SETTINGS, "group_size": group_size}))
        layer = load_layer(quantizer, linear_spec("model.x_proj", num_columns, 8), {"x_proj": tensors})
        assert torch.equal(effective(layer, num_columns), dequantized(codes, scale, zero, groups))


@pytest.mark.parametrize(("bits", "tied"), [(4, True), (8, False), (3, True)])
def test_model_answers_as_the_dequantized_one(tmp_path: Path, bits: int, tied: bool) -> None:
    quantized, plain = write_pair(
        tmp_path, {**GPTQ_SETTINGS, "bits": bits}, lambda _, weight: encode_gptq(bits, 32, weight), tied=tied
    )
    check_models(quantized, plain, GPTQConfig())


def test_overrides_count_by_full_name(tmp_path: Path) -> None:
    """`dynamic` gives layers other bits and groups, or leaves them plain; the first pattern that matches counts."""
    settings = {
        **GPTQ_SETTINGS,
        "lm_head": True,
        "dynamic": {
            r"-:.*\.0\.mlp\.down_proj": {},
            r"+:.*\.mlp\..*": {"bits": 8, "group_size": 64},
            r".*\.1\.self_attn\.q_proj": {"group_size": 64},
            r"model\.layers\.1\.mlp.*": {"bits": 2},
        },
    }

    def encode_some(part: str, weight: torch.Tensor) -> Encoded:
        if part == "model.layers.0.mlp.down_proj":
            return {"weight": weight}, weight
        bits = 8 if ".mlp." in part else 4
        is_wide = ".mlp." in part or part.endswith(".1.self_attn.q_proj")
        return encode_gptq(bits, 64 if is_wide else 32, weight, symmetric=False)

    quantized, plain = write_pair(tmp_path, settings, encode_some, tied=False, head=True)
    check_models(quantized, plain, GPTQConfig())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint_format": "marlin"}, "layouts gptq and gptq_v2, got 'marlin'"),
        ({"checkpoint_format": "gptq_p"}, "got 'gptq_p'; .* convert it with GPTQModel"),
        ({"is_marlin_format": True}, "got 'marlin'"),
        ({"bits": 5}, "weights of 2, 3, 4, 8 bits, got 5"),
        ({"pack_dtype": "int16"}, "got pack_dtype 'int16'"),
        ({"group_size": 0}, "'group_size' must be -1 or above 0, got 0"),
        ({"dynamic": {"(": {}}}, r"'dynamic' has '\(', no regular expression"),
        ({"dynamic": {"x": 3}}, "must give 'x' an object of settings, got 3"),
        ({"dynamic": {"x": {"bits": 6}}}, "bits, got 6"),
        ({"dynamic": {"x": {"format": "marlin"}}}, "gives 'x' its own 'format'"),
    ],
)
def test_other_variants_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        GPTQConfig().build(context({**GPTQ_SETTINGS, **changes}))


def test_other_methods_are_refused() -> None:
    with pytest.raises(ConfigError, match="got 'awq'; try quant=awq"):
        GPTQConfig().build(context({"quant_method": "awq"}))


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({"desc_act": True}, {}, r"model\.x_proj: lacks 'g_idx', without which desc_act=true"),
        ({}, {"g_idx": torch.arange(64) // 16}, "'g_idx' cannot be right: its groups have other sizes than 32"),
        ({}, {"scales": torch.ones(3, 8)}, r"'scales' must have the shape \[2, 8\], got \[3, 8\]"),
        ({"bits": 3}, {}, "its 8 output features of 3 bits do not fill words of 32 bits; .* multiple of 32"),
        ({"dynamic": {"-:model": {}}}, {}, "'dynamic' says that it is not quantized, but its weights are packed"),
    ],
)
def test_damaged_layers_are_refused(settings: dict[str, Any], change: Tensors, message: str) -> None:
    tensors = {**encode_gptq(4, 32, random(1, 8, 64))[0], **change}
    quantizer = GPTQConfig(weights="dense").build(context({**GPTQ_SETTINGS, **settings}))
    with pytest.raises(ModelError, match=message):
        load_layer(quantizer, linear_spec("model.x_proj", 64, 8), {"x_proj": tensors})


def test_static_groups_need_no_group_index() -> None:
    tensors, numbers = encode_gptq(4, 32, random(1, 8, 64))
    quantizer = GPTQConfig(weights="dense").build(context({**GPTQ_SETTINGS, "desc_act": True, "static_groups": True}))
    layer = load_layer(quantizer, linear_spec("model.x_proj", 64, 8), {"x_proj": tensors})
    assert torch.equal(effective(layer, 64), numbers)
