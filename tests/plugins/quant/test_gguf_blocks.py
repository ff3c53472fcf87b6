"""GGUF blocks as codes: the numbers of the file to the bit, layers of several types, refusals, and whole models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize

from tests.core.loader.gguf_conversion import Conversion, write_gguf
from tests.core.models.dense_attention import Sequences
from tests.plugins.quant.low_bit_levels import NEEDS_COMPILER
from tests.tiny_model import write_tiny_llama
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.quant import LayerSpec, QuantContext, Quantizer, Shard
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.gguf_dequant import BLOCK_TYPES, dequantize
from tokenloom.models.build import build_model
from tokenloom.models.causal_lm import CausalLM
from tokenloom.parallel import ParallelContext
from tokenloom_quant.gguf import GGUFConfig
from tokenloom_quant.gguf.block_codes import BLOCK_CODES
from tokenloom_quant.gguf.layers import GGUFLinear
from tokenloom_quant.none import NoneConfig

CPU = torch.device("cpu")
PROMPT = list(range(3, 40))


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _blocks(weight: torch.Tensor, kind: str) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(quantize(weight.numpy(), gguf.GGMLQuantizationType[kind])))


def _context(dtype: torch.dtype = torch.float32, stored_types: frozenset[str] = frozenset({"Q4_1"})) -> QuantContext:
    return QuantContext(dtype, CPU, stored_types=stored_types)


@pytest.mark.parametrize("kind", BLOCK_CODES)
def test_codes_are_the_numbers_of_the_file(kind: str) -> None:
    """Blocks of random bytes: every pattern of codes, and scales of any size and sign."""
    num_bytes = BLOCK_CODES[kind].block_bytes
    (block_type,) = (each for each in BLOCK_TYPES.values() if each.name == kind)
    assert num_bytes == block_type.block_bytes
    raw = torch.randint(0, 256, (50, 3 * num_bytes), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    affine = BLOCK_CODES[kind].encode(raw)
    assert int(affine.codes.max()) < 2**affine.bits
    exact = dequantize(raw, block_type, torch.float32)
    finite = exact.isfinite()
    assert finite.float().mean() > 0.8
    assert torch.equal(affine.dequantized()[finite], exact[finite])


@NEEDS_COMPILER
def test_layers_of_several_types_are_several_products() -> None:
    shards = (Shard("q_proj", 40), Shard("k_proj", 8), Shard("v_proj", 8), Shard("z_proj", 3))
    spec = LayerSpec("model.qkvz_proj", "linear", 64, 59, shards, has_bias=True)
    weights, biases = torch.split(_random(1, 59, 64), [40, 8, 8, 3]), torch.split(_random(2, 59), [40, 8, 8, 3])
    layer = GGUFConfig().build(_context()).create_linear(spec)
    stored: list[torch.Tensor] = []
    for shard, weight, bias, kind in zip(shards, weights, biases, ("Q4_1", "Q4_1", "Q8_0", None)):
        layer.load(shard.name, "bias", bias)
        if kind is None:
            layer.load(shard.name, "weight", weight)
            stored.append(weight)
            continue
        blocks = _blocks(weight, kind)
        layer.load(shard.name, kind, blocks)
        stored.append(torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind])))
    layer.finalize()
    assert len(layer.products) == 3
    x = _random(3, 5, 64)
    torch.testing.assert_close(layer.apply(x), x @ torch.cat(stored).T + torch.cat(biases), rtol=1e-5, atol=1e-4)


@NEEDS_COMPILER
def test_parameters_of_other_formats_are_refused() -> None:
    spec = LayerSpec("model.x_proj", "linear", 64, 8, (Shard("x_proj", 8),))
    layer = GGUFConfig().build(_context()).create_linear(spec)
    for parameter, tensor in (("qweight", torch.zeros(8, 8)), ("weight", torch.zeros(8, 64, dtype=torch.int8))):
        with pytest.raises(ModelError, match=rf"model\.x_proj, shard x_proj: takes blocks of .* got '{parameter}'"):
            layer.load("x_proj", parameter, tensor)
    with pytest.raises(ModelError, match="no weight came for x_proj"):
        layer.finalize()


@pytest.mark.parametrize(("stored_types", "found"), [((), "none"), (("MXFP4", "IQ4_NL"), "IQ4_NL, MXFP4")])
def test_models_without_such_blocks_are_refused(stored_types: Sequence[str], found: str) -> None:
    with pytest.raises(ConfigError, match=rf"this model has {found}; try quant=none"):
        GGUFConfig().build(_context(stored_types=frozenset(stored_types)))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("tied", [False, True])
@NEEDS_COMPILER
def test_model_in_blocks_says_what_the_decoded_one_says(tmp_path: Path, kind: str, tied: bool) -> None:
    folder = write_tiny_llama(tmp_path, tied=tied)
    path = write_gguf(folder, tmp_path / "model.gguf", Conversion(kind=gguf.GGMLQuantizationType[kind]))
    plain = _build(path, NoneConfig().build(_context()))
    packed = _build(path, GGUFConfig().build(_context(stored_types=frozenset({kind}))))
    assert packed.num_weight_bytes < (0.4 if kind == "Q8_0" else 0.3) * plain.num_weight_bytes
    logits = [Sequences(model, 1, 128).feed(PROMPT) for model in (plain, packed)]
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)
    tokens = [Sequences(model, 1, 128).greedy(PROMPT, 32) for model in (plain, packed)]
    assert tokens[0] == tokens[1]


def test_blocks_are_handed_over_in_the_row_order_of_the_model(tmp_path: Path) -> None:
    """The file interleaves the rows of q and k; whoever takes blocks gets them in the same order as decoded rows."""
    folder = write_tiny_llama(tmp_path, tied=True)
    path = write_gguf(folder, tmp_path / "model.gguf", Conversion(kind=gguf.GGMLQuantizationType.Q4_1))
    checkpoint = open_checkpoint(path)
    assert checkpoint.stored_types == {"Q4_1"}
    assert checkpoint.stored_type("model.norm.weight") is None
    (block_type,) = (each for each in BLOCK_TYPES.values() if each.name == "Q4_1")
    names = [name for name in checkpoint.tensor_names() if checkpoint.stored_type(name) is not None]
    assert any(".q_proj." in name for name in names)
    assert any(".down_proj." in name for name in names)
    for name in names:
        stored, decoded = checkpoint.load_stored(name), checkpoint.load(name)
        assert stored.type_name == "Q4_1"
        assert stored.shape == decoded.shape
        assert torch.equal(dequantize(stored.blocks, block_type, torch.float32), decoded)
    checkpoint.close()


def _build(path: Path, quantizer: Quantizer) -> CausalLM:
    checkpoint = open_checkpoint(path)
    try:
        return build_model(checkpoint, quantizer=quantizer, dtype=torch.float32, device=CPU, parallel=ParallelContext())
    finally:
        checkpoint.close()


@NEEDS_COMPILER
def test_storage_without_weights_says_so() -> None:
    spec = LayerSpec("model.x_proj", "linear", 64, 8, (Shard("x_proj", 8),))
    layer = GGUFConfig().build(_context()).create_linear(spec)
    assert isinstance(layer, GGUFLinear)
    with pytest.raises(AssertionError, match="used before it was finalized"):
        layer.apply(torch.zeros(1, 64))
