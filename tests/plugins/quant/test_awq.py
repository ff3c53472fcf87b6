"""`quant=awq`: the published packing, its numbers to the bit, whole models, and what is refused."""

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
    dequantized,
    effective,
    linear_spec,
    load_layer,
    random,
    random_codes,
    rounded,
    write_pair,
)
from tests.plugins.quant.format_encoders import AWQ_SETTINGS, awq_tensors, encode_awq
from tests.plugins.quant.low_bit_levels import NEEDS_COMPILER
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.quant import LayerSpec
from tokenloom_quant.awq import AWQConfig
from tokenloom_quant.low_bit.product import LowBitProduct


class AWQSuite(CheckpointSuite):
    plugin = "awq"
    checkpoint = AWQ_SETTINGS
    in_multiple = 32
    out_multiple = 8
    max_relative_error = 1.05 / 15

    def make_tensors(self, spec: LayerSpec, weight: torch.Tensor) -> Tensors:
        return encode_awq("", weight)[0]


@NEEDS_COMPILER
class TestPacked(AWQSuite):
    """float16 has no packed product: there `auto` dequantizes."""


class TestDense(AWQSuite):
    settings = {"weights": "dense"}


def test_word_that_the_format_publishes() -> None:
    """One word per row: column 0 in the lowest four bits, then 2, 4, 6, 1, 3, 5, 7."""
    spec = linear_spec("model.x_proj", 32, 8)
    word = 0x7531_6420 - (1 << 32 if 0x7531_6420 >= 1 << 31 else 0)
    tensors = {
        "qweight": torch.full((32, 1), word, dtype=torch.int32),
        "qzeros": torch.zeros(1, 1, dtype=torch.int32),
        "scales": torch.ones(1, 8, dtype=torch.float16),
    }
    layer = load_layer(AWQConfig(weights="dense").build(context(AWQ_SETTINGS)), spec, {"x_proj": tensors})
    assert effective(layer, 32)[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("weights", ["dense", pytest.param("packed", marks=NEEDS_COMPILER)])
@pytest.mark.parametrize(("num_columns", "group_size"), [(128, -1), (192, 64), (192, 32), (384, 128)])
def test_numbers_are_those_of_the_checkpoint(weights: Any, num_columns: int, group_size: int) -> None:
    """Every code and zero point occurs, in fused layers, too: nothing is rounded again."""
    spec = linear_spec("model.layers.0.self_attn.qkv_proj", num_columns, 40, 8, 16)
    size = num_columns if group_size == -1 else group_size
    shards: dict[str, Tensors] = {}
    wanted: list[torch.Tensor] = []
    for seed, shard in enumerate(spec.shards):
        codes = random_codes(seed, 15, shard.out_features, num_columns)
        zero = random_codes(seed + 9, 15, shard.out_features, num_columns // size)
        scale = random(seed, shard.out_features, num_columns // size).abs().add(0.01).half()
        shards[shard.name] = awq_tensors(codes, scale, zero)
        wanted.append(dequantized(codes, scale, zero, torch.arange(num_columns) // size))
    quantizer = AWQConfig(weights=weights).build(context({**AWQ_SETTINGS, "group_size": group_size}))
    layer = load_layer(quantizer, spec, shards)
    assert torch.equal(effective(layer, num_columns), torch.cat(wanted))
    assert isinstance(layer.linears[0], LowBitProduct) == (weights == "packed")
    assert len(layer.linears) == 1


@pytest.mark.parametrize("tied", [True, False])
def test_model_answers_as_the_dequantized_one(tmp_path: Path, tied: bool) -> None:
    quantized, plain = write_pair(tmp_path, AWQ_SETTINGS, encode_awq, tied=tied, attention_bias=True)
    check_models(quantized, plain, AWQConfig())


def test_layers_that_were_left_plain_are_read(tmp_path: Path) -> None:
    """With and without a list of them; the list of the format names parts of names ("k_proj"), too."""
    for number, left_out in enumerate((["model.layers.1.mlp"], None, ["k_proj"])):
        is_plain = {0: ".1.mlp.", 1: "o_proj", 2: "k_proj"}[number]

        def encode_some(part: str, weight: torch.Tensor, is_plain: str = is_plain) -> Encoded:
            return ({"weight": weight}, weight) if is_plain in f"{part}." else encode_awq(part, weight)

        settings = {**AWQ_SETTINGS, "modules_to_not_convert": left_out}
        folder = tmp_path / str(number)
        check_models(*write_pair(folder, settings, encode_some), AWQConfig())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "gemv"}, "packing 'gemm' of AutoAWQ, got version 'gemv'"),
        ({"version": "marlin"}, "got version 'marlin'"),
        ({"backend": "llm-awq"}, "of 'llm-awq'"),
        ({"bits": 8}, "weights of 4 bits, got 8"),
        ({"group_size": 0}, "'group_size' must be -1 or above 0, got 0"),
        ({"group_size": "all"}, "'group_size' must be an integer"),
    ],
)
def test_other_variants_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        AWQConfig().build(context({**AWQ_SETTINGS, **changes}))


def test_other_methods_are_refused_with_the_plugin_that_reads_them() -> None:
    with pytest.raises(ConfigError, match="got 'gptq'; try quant=gptq"):
        AWQConfig().build(context({"quant_method": "gptq"}))
    with pytest.raises(ConfigError, match="got 'quip'; known are awq"):
        AWQConfig().build(context({"quant_method": "quip"}))
    with pytest.raises(ConfigError, match=r"not quantized .*; try quant=none"):
        AWQConfig().build(context({}))


def test_older_names_of_settings_are_read() -> None:
    settings = {"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "version": "GEMM"}
    quantizer = AWQConfig(weights="dense").build(context(settings))
    weight = random(1, 8, 64)
    layer = load_layer(quantizer, linear_spec("model.x_proj", 64, 8), {"x_proj": encode_awq("", weight)[0]})
    assert torch.equal(effective(layer, 64), encode_awq("", weight)[1])


@pytest.mark.parametrize(
    ("num_columns", "num_rows", "change", "message"),
    [
        (80, 8, {}, r"model\.x_proj: groups of 32 do not divide its 80 input features; .* group_size -1"),
        (64, 12, {}, "do not divide its 12"),
        (64, 8, {"qzeros": None}, "lacks the tensor 'qzeros'; the checkpoint holds qweight, scales"),
        (64, 8, {"scales": torch.ones(1, 8)}, r"'scales' must have the shape \[2, 8\], got \[1, 8\]"),
        (64, 8, {"qweight": torch.zeros(64, 1)}, "'qweight' must be int32, got float32"),
        (64, 8, {"g_idx": torch.zeros(64)}, "holds 'g_idx', which the format's settings give no meaning to"),
    ],
)
def test_damaged_layers_are_refused(num_columns: int, num_rows: int, change: dict[str, Any], message: str) -> None:
    tensors = {
        "qweight": torch.zeros(num_columns, num_rows // 8, dtype=torch.int32),
        "qzeros": torch.zeros(num_columns // 32, num_rows // 8, dtype=torch.int32),
        "scales": torch.ones(num_columns // 32, num_rows),
        **change,
    }
    held = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    quantizer = AWQConfig(weights="dense").build(context(AWQ_SETTINGS))
    with pytest.raises(ModelError, match=message):
        load_layer(quantizer, linear_spec("model.x_proj", num_columns, num_rows), {"x_proj": held})


@NEEDS_COMPILER
def test_what_happens_to_weights_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    spec = linear_spec("model.x_proj", 64, 8)
    tensors = {"x_proj": encode_awq("", random(1, 8, 64))[0]}
    for config, dtype, said in (
        (AWQConfig(), torch.float32, "quant=awq multiplies packed weights of 4 bits\n"),
        (AWQConfig(weights="dense"), torch.bfloat16, "quant=awq dequantizes weights to bfloat16\n"),
        (AWQConfig(), torch.float16, "quant=awq keeps no weights packed: packed products compute in float32 or"),
    ):
        quantizer = config.build(context(AWQ_SETTINGS, dtype))
        for _ in range(2):
            load_layer(quantizer, spec, tensors)
        assert capsys.readouterr().err.count(said) == 1
    with pytest.raises(ConfigError, match=r"quant\.weights=packed: .* got float16; try quant\.weights=auto"):
        AWQConfig(weights="packed").build(context(AWQ_SETTINGS, torch.float16))


def test_layers_that_cannot_stay_packed_are_refused_where_that_is_asked_for() -> None:
    settings = {**AWQ_SETTINGS, "group_size": 4}
    codes, scale, zero = rounded(random(1, 8, 64), 4, 4, symmetric=False)
    tensors = {"x_proj": awq_tensors(codes, scale, zero)}
    spec = linear_spec("model.x_proj", 64, 8)
    wanted = dequantized(codes, scale, zero, torch.arange(64) // 4)
    layer = load_layer(AWQConfig().build(context(settings)), spec, tensors)
    assert torch.equal(effective(layer, 64), wanted)
    quantizer = AWQConfig(weights="packed").build(context(settings))
    with pytest.raises(ModelError, match=r"groups of a multiple of 8, this layer has 4; quant\.weights=auto"):
        load_layer(quantizer, spec, tensors)
