"""Quantized checkpoints as their formats publish them, written and dequantized independently of the plugins that read
them; and the suite of those plugins."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.core.models.dense_attention import Sequences
from tests.plugins.quant.low_bit_levels import LowBitSuite
from tests.tiny_model import write_byte_tokenizer, write_tiny_llama
from tokenloom.interfaces.quant import LayerSpec, LinearWeights, QuantConfig, QuantContext, Quantizer, Shard
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.models.build import build_model
from tokenloom.models.causal_lm import CausalLM
from tokenloom.parallel import ParallelContext
from tokenloom.testing.held_memory import held_tensor_bytes
from tokenloom_quant.affine_layers import CheckpointLinear
from tokenloom_quant.low_bit.product import LowBitProduct
from tokenloom_quant.none import NoneConfig

CPU = torch.device("cpu")
PROMPT = [(7 * token + 3) % 251 for token in range(30)]
Tensors = dict[str, torch.Tensor]
Encoded = tuple[Tensors, torch.Tensor]
"""The tensors of a layer by parameter, and the weight that they stand for."""


class CheckpointSuite(LowBitSuite):
    """Packed parts of layers lie in memory that all layers share."""

    def held_bytes(self, weights: LinearWeights) -> int:
        assert isinstance(weights, CheckpointLinear)
        packed = [linear for linear in weights.linears if isinstance(linear, LowBitProduct)]
        parts = [part for linear in packed for part in vars(linear).values() if isinstance(part, torch.Tensor)]
        shared = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}
        return held_tensor_bytes(weights) - sum(shared.values()) + sum(part.nbytes for part in parts)


def random(seed: int, *shape: int) -> torch.Tensor:
    """fp32 normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def random_codes(seed: int, most: int, *shape: int) -> torch.Tensor:
    """int64 from 0 to `most`, both of which occur."""
    codes = torch.randint(0, most + 1, shape, generator=torch.Generator().manual_seed(seed))
    codes.flatten()[0], codes.flatten()[-1] = 0, most
    return codes


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Numbers side by side along the last dimension, lowest bits first, filled up to whole words: -> int32."""
    single = (codes.numpy()[..., None] >> np.arange(bits)) & 1
    stream = single.reshape(*codes.shape[:-1], -1).astype(np.uint8)
    stream = np.pad(stream, [(0, 0)] * (stream.ndim - 1) + [(0, -stream.shape[-1] % 32)])
    return torch.from_numpy(np.packbits(stream, axis=-1, bitorder="little").view(np.int32).copy())


def rounded(weight: torch.Tensor, bits: int, group_size: int, *, symmetric: bool) -> tuple[torch.Tensor, ...]:
    """To nearest: codes int64 [N, K], scales [N, G] in float16 and zero points int64 [N, G] of groups of columns."""
    groups = weight.view(weight.shape[0], -1, group_size)
    most, middle = 2**bits - 1, 2 ** (bits - 1)
    if symmetric:
        scale = groups.abs().amax(dim=2).div(middle - 0.5).clamp(min=1e-4).half()
        zero = torch.full_like(scale, middle).long()
    else:
        low, high = groups.amin(dim=2).clamp(max=0), groups.amax(dim=2).clamp(min=0)
        scale = ((high - low) / most).clamp(min=1e-4).half()
        zero = (-low / scale).round().clamp(0, most).long()
    codes = (groups / scale[..., None].float()).round().long() + zero[..., None]
    return codes.clamp(0, most).flatten(1), scale, zero


def dequantized(
    codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, group_index: torch.Tensor
) -> torch.Tensor:
    """fp64 [N, K], column by column."""
    columns = []
    for column, group in enumerate(group_index.tolist()):
        columns.append((codes[:, column] - zero[:, group]).double() * scale[:, group].double())
    return torch.stack(columns, dim=1)


def linear_spec(part: str, num_columns: int, *sizes: int) -> LayerSpec:
    """A layer of one shard named like `part`, or of q, k and v."""
    names = ("q_proj", "k_proj", "v_proj") if len(sizes) > 1 else (part.rpartition(".")[2],)
    shards = tuple(Shard(name, size) for name, size in zip(names, sizes))
    return LayerSpec(part, "linear", num_columns, sum(sizes), shards)


def context(settings: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> QuantContext:
    """A checkpoint with this quantization_config, on the CPU."""
    return QuantContext(dtype, CPU, settings)


def load_layer(quantizer: Quantizer, spec: LayerSpec, tensors: Mapping[str, Tensors]) -> CheckpointLinear:
    """The layer with the tensors of each shard, finalized."""
    layer = quantizer.create_linear(spec)
    for shard, parameters in tensors.items():
        for name, tensor in parameters.items():
            layer.load(shard, name, tensor)
    layer.finalize()
    assert isinstance(layer, CheckpointLinear)
    return layer


def effective(layer: CheckpointLinear, num_columns: int) -> torch.Tensor:
    """fp64 [N, K]: what the layer multiplies by."""
    return layer.apply(torch.eye(num_columns)).double().T


def write_pair(
    folder: Path,
    settings: Mapping[str, Any],
    encode: Callable[[str, torch.Tensor], Encoded],
    *,
    tied: bool = True,
    head: bool = False,
    attention_bias: bool = False,
    with_tokenizer: bool = False,
) -> tuple[Path, Path]:
    """A tiny Llama in a format, and the dense one with the dequantized weights.

    Args:
        folder: where both go.
        settings: quantization_config.
        encode: full name of a layer, and its weight.
        tied: whether the embedding is the head.
        head: whether the head is quantized, too.
        attention_bias: whether q, k, v and o have one.
        with_tokenizer: whether both folders get a byte-level tokenizer.
    """
    plain = write_tiny_llama(
        folder / "plain", tied=tied, attention_bias=attention_bias, hidden_size=128, head_dim=32, intermediate_size=256
    )
    tensors = load_file(plain / "model.safetensors")
    packed, dense = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        part = name.removesuffix(".weight")
        if name.endswith("_proj.weight") or (head and part == "lm_head"):
            parameters, numbers = encode(part, weight)
            del packed[name]
            packed |= {f"{part}.{parameter}": tensor.contiguous() for parameter, tensor in parameters.items()}
            dense[name] = numbers.float().contiguous()
    save_file(dense, plain / "model.safetensors", metadata={"format": "pt"})
    quantized = folder / "quantized"
    quantized.mkdir()
    config = json.loads((plain / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps({**config, "quantization_config": dict(settings)}))
    save_file(packed, quantized / "model.safetensors", metadata={"format": "pt"})
    if with_tokenizer:
        for each in (plain, quantized):
            write_byte_tokenizer(each)
    return quantized, plain


def check_models(quantized: Path, plain: Path, config: QuantConfig, *, tolerance: float = 1e-4) -> CausalLM:
    """Asserts that the quantized model answers as the dense one does; returns it."""
    dense = load_model(plain, NoneConfig())
    model = load_model(quantized, config)
    logits = [Sequences(each, 1, 128).feed(PROMPT) for each in (model, dense)]
    torch.testing.assert_close(logits[0], logits[1], rtol=tolerance, atol=tolerance)
    tokens = [Sequences(each, 1, 128).greedy(PROMPT, 24) for each in (model, dense)]
    assert tokens[0] == tokens[1]
    assert len(set(tokens[0])) > 6
    return model


def load_model(folder: Path, config: QuantConfig) -> CausalLM:
    """In float32 on the CPU."""
    checkpoint = open_checkpoint(folder)
    quantizer = config.build(context(checkpoint.quantization or {}))
    try:
        return build_model(checkpoint, quantizer=quantizer, dtype=torch.float32, device=CPU, parallel=ParallelContext())
    finally:
        checkpoint.close()
