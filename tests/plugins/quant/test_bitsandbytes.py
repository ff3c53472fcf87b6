"""`quant=bitsandbytes`: codes of 4 bits with plain and with rounded scales, LLM.int8, whole models, and refusals."""

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
from tests.plugins.quant.format_encoders import BNB_TABLE, encode_bnb
from tests.plugins.quant.low_bit_levels import NEEDS_COMPILER
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.quant import LayerSpec
from tokenloom.loader.tensor_names import canonical_names
from tokenloom_quant.bitsandbytes import BitsAndBytesConfig
from tokenloom_quant.low_bit.product import LowBitProduct

SETTINGS: dict[str, Any] = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": False,
}
SETTINGS_8: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}


def side_by_side(tensors: Tensors) -> Tensors:
    """As the loader hands them to a layer."""
    names = canonical_names(["model.embed_tokens.weight", *(f"x_proj.{name}" for name in tensors)], "here")
    return {
        name.partition(".")[2]: tensors[stored.partition(".")[2]]
        for name, stored in names.items()
        if name.startswith("x_proj")
    }


def encode_8(weight: torch.Tensor) -> Encoded:
    largest = weight.abs().amax(dim=1).clamp(min=1e-6)
    codes = (weight * 127 / largest[:, None]).round()
    tensors = {"weight": codes.to(torch.int8), "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, codes * largest[:, None] / 127


class EightBitsSuite(CheckpointSuite):
    plugin = "bitsandbytes"
    checkpoint = SETTINGS_8

    def make_tensors(self, spec: LayerSpec, weight: torch.Tensor) -> Tensors:
        return encode_8(weight)[0]


@NEEDS_COMPILER
class TestEightBits(EightBitsSuite):
    """float16 has no packed product: there `auto` dequantizes."""


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("shape", [(300, 96), (7, 33)])
def test_numbers_are_those_of_the_checkpoint(nested: bool, kind: str, shape: tuple[int, int]) -> None:
    """More than 256 scales, and a number of weights that fills neither the last block nor the last byte."""
    tensors, numbers = encode_bnb(random(1, *shape), nested=nested, kind=kind)
    spec = linear_spec("model.x_proj", shape[1], shape[0])
    layer = load_layer(BitsAndBytesConfig().build(context(SETTINGS)), spec, {"x_proj": side_by_side(tensors)})
    assert torch.equal(effective(layer, shape[1]), numbers.double())


def test_upper_half_of_a_byte_comes_first() -> None:
    tensors, _ = encode_bnb(random(1, 1, 64), nested=False)
    tensors["weight"] = torch.full((32, 1), 0x3A, dtype=torch.uint8)
    tensors["weight.absmax"] = torch.tensor([2.0])
    spec = linear_spec("model.x_proj", 64, 1)
    layer = load_layer(BitsAndBytesConfig().build(context(SETTINGS)), spec, {"x_proj": side_by_side(tensors)})
    assert effective(layer, 64)[0, :2].tolist() == [2 * float(BNB_TABLE[3]), 2 * float(BNB_TABLE[10])]


def test_codes_may_be_stored_as_other_types() -> None:
    """`bnb_4bit_quant_storage` names a type whose bytes they are."""
    tensors, numbers = encode_bnb(random(1, 8, 64), nested=False)
    tensors["weight"] = tensors["weight"].flatten().view(torch.bfloat16)[:, None]
    spec = linear_spec("model.x_proj", 64, 8)
    layer = load_layer(BitsAndBytesConfig().build(context(SETTINGS)), spec, {"x_proj": side_by_side(tensors)})
    assert torch.equal(effective(layer, 64), numbers.double())


@pytest.mark.parametrize("weights", ["dense", pytest.param("packed", marks=NEEDS_COMPILER)])
def test_weights_of_8_bits(weights: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tensors, numbers = encode_8(random(1, 9, 33))
    quantizer = BitsAndBytesConfig(weights=weights).build(context(SETTINGS_8))
    layer = load_layer(quantizer, linear_spec("model.x_proj", 33, 9), {"x_proj": tensors})
    torch.testing.assert_close(effective(layer, 33), numbers.double(), rtol=1e-6, atol=1e-6)
    assert isinstance(layer.linears[0], LowBitProduct) == (weights == "packed")
    assert "takes activations as they are" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nf4", "nested", "int8"])
def test_model_answers_as_the_dequantized_one(tmp_path: Path, name: str) -> None:
    def encode_layer(part: str, weight: torch.Tensor) -> Encoded:
        if part.endswith(".0.mlp.down_proj"):  # named in llm_int8_skip_modules, by its last part or its full name
            return {"weight": weight}, weight
        return encode_8(weight) if name == "int8" else encode_bnb(weight, nested=name == "nested")

    settings = SETTINGS_8 if name == "int8" else {**SETTINGS, "bnb_4bit_use_double_quant": name == "nested"}
    check_models(*write_pair(tmp_path, settings, encode_layer, tied=False), BitsAndBytesConfig())


def test_settings_that_name_no_form_are_refused() -> None:
    with pytest.raises(ModelError, match="neither 'load_in_4bit' nor 'load_in_8bit'"):
        BitsAndBytesConfig().build(context({"quant_method": "bitsandbytes"}))
    with pytest.raises(ConfigError, match="got 'awq'; try quant=awq"):
        BitsAndBytesConfig().build(context({"quant_method": "awq"}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(5, 1, dtype=torch.uint8)}, "must hold 256 bytes for 512 weights, got 5"),
        ({"weight.absmax": torch.ones(3)}, r"'weight_absmax' must have the shape \[8\], got \[3\]"),
        ({"weight.quant_state.bitsandbytes__nf4": torch.zeros(3, dtype=torch.uint8)}, "quant_state cannot be read"),
        (
            {"weight.quant_state.bitsandbytes__nf4": torch.tensor(list(b'{"blocksize": 64, "shape": [64, 8]}')).byte()},
            r"quant_state states the shape \[64, 8\], the model's config \[8, 64\]",
        ),
        ({"weight.quant_state.bitsandbytes__nf4": torch.tensor(list(b"[]")).byte()}, "lacks the key 'blocksize'"),
    ],
)
def test_damaged_layers_are_refused(change: Tensors, message: str) -> None:
    tensors = {**encode_bnb(random(1, 8, 64), nested=False)[0], **change}
    quantizer = BitsAndBytesConfig().build(context(SETTINGS))
    with pytest.raises(ModelError, match=message):
        load_layer(quantizer, linear_spec("model.x_proj", 64, 8), {"x_proj": side_by_side(tensors)})


def test_rows_of_other_layouts_are_refused() -> None:
    tensors = {**encode_8(random(1, 8, 64))[0], "weight_format": torch.tensor(2, dtype=torch.uint8)}
    with pytest.raises(ModelError, match="'weight_format' is 2, readable is 0"):
        quantizer = BitsAndBytesConfig().build(context(SETTINGS_8))
        load_layer(quantizer, linear_spec("model.x_proj", 64, 8), {"x_proj": tensors})
