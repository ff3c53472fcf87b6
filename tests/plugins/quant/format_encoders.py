"""Weights in the forms that checkpoint formats publish, and the numbers that they stand for, independent of what reads
them."""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from tests.plugins.quant.checkpoint_packing import Encoded, Tensors, dequantized, pack, rounded

FP8 = torch.float8_e4m3fn

AWQ_SETTINGS: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "zero_point": True,
    "version": "gemm",
    "modules_to_not_convert": None,
}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # of columns in a word, lowest bits first


def awq_tensors(codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> Tensors:
    """codes [N, K], scale and zero [N, G] -> what a checkpoint holds."""

    def words(values: torch.Tensor) -> torch.Tensor:
        return pack(values.T.reshape(values.shape[1], -1, 8)[..., AWQ_ORDER].flatten(1), 4)

    return {"qweight": words(codes), "qzeros": words(zero), "scales": scale.T.contiguous()}


def encode_awq(_: str, weight: torch.Tensor) -> Encoded:
    codes, scale, zero = rounded(weight, 4, 32, symmetric=False)
    return awq_tensors(codes, scale, zero), dequantized(codes, scale, zero, torch.arange(weight.shape[1]) // 32)


GPTQ_SETTINGS: dict[str, Any] = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "desc_act": False,
    "sym": True,
    "checkpoint_format": "gptq",
}


def gptq_tensors(
    codes: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor,
    bits: int,
    *,
    group_index: torch.Tensor | None = None,
    version: int = 1,
) -> Tensors:
    """codes [N, K], scale and zero [N, G] -> what a checkpoint holds."""
    stored_zero = (zero - 1) % 2**bits if version == 1 else zero
    tensors = {
        "qweight": pack(codes, bits).T.contiguous(),
        "qzeros": pack(stored_zero.T.contiguous(), bits),
        "scales": scale.T.contiguous(),
    }
    return tensors if group_index is None else {**tensors, "g_idx": group_index.int()}


def shuffled_groups(seed: int, num_columns: int, group_size: int) -> torch.Tensor:
    """The groups of columns that were taken in another order, as desc_act=true makes them."""
    order = torch.randperm(num_columns, generator=torch.Generator().manual_seed(seed))
    groups = torch.empty(num_columns, dtype=torch.int64)
    groups[order] = torch.arange(num_columns) // group_size
    return groups


def encode_gptq(bits: int, group_size: int, weight: torch.Tensor, *, symmetric: bool = True) -> Encoded:
    codes, scale, zero = rounded(weight, bits, group_size, symmetric=symmetric)
    numbers = dequantized(codes, scale, zero, torch.arange(weight.shape[1]) // group_size)
    return gptq_tensors(codes, scale, zero, bits), numbers


def ct_settings(
    weights: dict[str, Any] | None, activations: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """quantization_config with one group for all linear layers."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
        **changes,
    }


def int_weights(bits: int, group_size: int | None, **changes: Any) -> dict[str, Any]:
    strategy = "channel" if group_size is None else "group"
    return {
        "num_bits": bits,
        "type": "int",
        "strategy": strategy,
        "group_size": group_size,
        "symmetric": True,
        **changes,
    }


def packed_tensors(
    codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, bits: int, *, symmetric: bool
) -> Tensors:
    """codes [N, K] and zero [N, G] from 0 to 2^bits - 1 -> what a checkpoint holds."""
    tensors = {
        "weight_packed": pack(codes, bits),
        "weight_scale": scale.bfloat16(),
        "weight_shape": torch.tensor(codes.shape),
    }
    return tensors if symmetric else {**tensors, "weight_zero_point": pack(zero.T.contiguous(), bits).T.contiguous()}


def encode_packed(bits: int, size: int, weight: torch.Tensor, *, symmetric: bool = True) -> Encoded:
    codes, scale, zero = rounded(weight, bits, size, symmetric=symmetric)
    scale = scale.bfloat16()
    numbers = dequantized(codes, scale, zero, torch.arange(weight.shape[1]) // size)
    return packed_tensors(codes, scale, zero, bits, symmetric=symmetric), numbers


def encode_int8(weight: torch.Tensor) -> Encoded:
    scale = (weight.abs().amax(dim=1, keepdim=True) / 127.5).clamp(min=1e-6)
    codes = (weight / scale).round().clamp(-128, 127)
    return {"weight": codes.to(torch.int8), "weight_scale": scale}, (codes * scale).double()


DYNAMIC_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
STATIC_TENSOR = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False, "symmetric": True}


def encode_fp8_tensor(_: str, weight: torch.Tensor) -> Encoded:
    scale = (weight.abs().max() / 448).clamp(min=1e-6)
    numbers = (weight / scale).to(FP8)
    return {"weight": numbers, "weight_scale": scale}, numbers.float() * scale


def encode_fp8_blocks(_: str, weight: torch.Tensor) -> Encoded:
    """Block by block; those at the edges are smaller."""
    num_rows, num_columns = weight.shape
    scale = torch.empty(math.ceil(num_rows / 128), math.ceil(num_columns / 128))
    numbers, dense = torch.empty(weight.shape, dtype=FP8), torch.empty_like(weight)
    for row in range(0, num_rows, 128):
        for column in range(0, num_columns, 128):
            block = weight[row : row + 128, column : column + 128]
            its_scale = (block.abs().max() / 448).clamp(min=1e-6)
            scale[row // 128, column // 128] = its_scale
            rounded = (block / its_scale).to(FP8)
            numbers[row : row + 128, column : column + 128] = rounded
            dense[row : row + 128, column : column + 128] = rounded.float() * its_scale
    return {"weight": numbers, "weight_scale_inv": scale}, dense


BNB_TABLE = torch.linspace(-1, 1, 16) ** 3  # any table does: it is stored
BNB_BLOCK = 64


def encode_bnb(weight: torch.Tensor, *, nested: bool, kind: str = "nf4") -> Encoded:
    """The tensors as a checkpoint names them, and the weight that they stand for, number by number."""
    flat = weight.flatten()
    num_blocks = -(-flat.numel() // BNB_BLOCK)
    largest = torch.stack([block.abs().max() for block in torch.split(flat, BNB_BLOCK)])
    state: dict[str, Any] = {
        "quant_type": kind,
        "blocksize": BNB_BLOCK,
        "dtype": "float16",
        "shape": list(weight.shape),
    }
    tensors: Tensors = {"weight.quant_map": BNB_TABLE.clone()}
    if nested:
        offset = float(largest.mean())
        its_table = torch.linspace(-1, 1, 256)
        outer = torch.stack([block.abs().max() for block in torch.split(largest - offset, 256)])
        codes = [
            int((its_table - (value - offset) / outer[i // 256]).abs().argmin()) for i, value in enumerate(largest)
        ]
        largest = torch.stack([its_table[code] * outer[i // 256] + offset for i, code in enumerate(codes)])
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        tensors |= {
            "weight.absmax": torch.tensor(codes, dtype=torch.uint8),
            "weight.nested_absmax": outer,
            "weight.nested_quant_map": its_table,
        }
    else:
        tensors["weight.absmax"] = largest
    assert largest.numel() == num_blocks
    scale = largest.repeat_interleave(BNB_BLOCK)[: flat.numel()]
    index = (flat[:, None] / scale[:, None] - BNB_TABLE).abs().argmin(dim=1)
    padded = torch.cat([index, index.new_zeros(flat.numel() % 2)]).view(-1, 2)
    tensors["weight"] = (padded[:, 0] * 16 + padded[:, 1]).to(torch.uint8)[:, None]
    text = json.dumps(state).encode()
    tensors[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(text), dtype=torch.uint8)
    return tensors, (BNB_TABLE[index] * scale).view(weight.shape)
