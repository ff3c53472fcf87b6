"""`quant=bitsandbytes`: reads checkpoints that were saved in 4 bits (nf4, fp4) or 8 bits (LLM.int8).

Codes of 4 bits name entries of a table of 16 numbers, so they are dequantized to the model's dtype at load.
Source: `QuantState` and `Linear8bitLt` of the bitsandbytes project.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, final

import torch
from pydantic import Field

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import LayerSpec, QuantConfig, QuantContext
from tokenloom_quant.affine_format import CheckpointFormat, ShardTensors
from tokenloom_quant.affine_quantizer import CheckpointQuantizer, StoredAs, checkpoint_settings
from tokenloom_quant.affine_weight import ReadWeight, affine_codes

__all__ = ["BitsAndBytesConfig", "BitsAndBytesFormat"]

_HEAD = "lm_head"
_PLACE = Path("quant_state")
_STATES = ("weight_quant_state_bitsandbytes__nf4", "weight_quant_state_bitsandbytes__fp4")
_INT8_REMARK = "takes activations as they are, where LLM.int8 would round all but the largest"


@final
class BitsAndBytesConfig(QuantConfig):
    """Settings of `quant=bitsandbytes`; all else is the checkpoint's."""

    weights: StoredAs = Field(
        default="auto",
        description="packed, multiplied as they are (8 bits); dense, dequantized at load; auto, packed if it can.",
    )

    def build(self, context: QuantContext) -> CheckpointQuantizer:
        settings = checkpoint_settings("bitsandbytes", "bitsandbytes", context)
        return CheckpointQuantizer("bitsandbytes", BitsAndBytesFormat(settings), context, self.weights)


@final
class BitsAndBytesFormat(CheckpointFormat):
    """The tensors tell which of the two forms a layer has. Tensors below `weight` come as `weight_...` beside it.

    Raises:
        ModelError: the settings name neither form.
    """

    def __init__(self, settings: Fields) -> None:
        if not any(settings.flag(key, False) for key in ("load_in_4bit", "load_in_8bit")):
            raise ModelError(f"{settings.path} sets neither 'load_in_4bit' nor 'load_in_8bit'; fetch the model again")

    def covers(self, spec: LayerSpec) -> bool:
        return spec.name != _HEAD

    def read(self, shard: ShardTensors) -> ReadWeight:
        return _read_int8(shard) if "SCB" in shard else _read_table(shard)


def _read_int8(shard: ShardTensors) -> ReadWeight:
    """weight int8 [N, K]; SCB [N] is the largest of each row."""
    weight = shard.take("weight", (shard.num_rows, shard.num_columns), torch.int8)
    largest = shard.take("SCB", (shard.num_rows,), torch.float32, torch.float16, torch.bfloat16)
    layout = shard.find("weight_format", None)
    if layout is not None and bool(layout.any()):
        shard.refuse(f"'weight_format' is {layout.tolist()}, readable is 0 (rows); save the model again")
    scale = largest.float()[:, None] / 127  # [N, 1]
    codes = weight.view(torch.uint8) ^ 128  # 128 is zero
    return ReadWeight(affine_codes(codes, scale, None, 8, shard.num_columns), remark=_INT8_REMARK)


def _read_table(shard: ShardTensors) -> ReadWeight:
    """weight_codes: two codes a byte, the upper first, row by row; a scale for each block of that sequence."""
    name = next((state for state in _STATES if state in shard), _STATES[0])
    state = _State(shard, shard.take(name, None, torch.uint8))
    num_weights = shard.num_rows * shard.num_columns
    octets = shard.take("weight_codes", None).contiguous().view(torch.uint8).flatten()
    if octets.numel() != -(-num_weights // 2):
        shard.refuse(f"'weight' must hold {-(-num_weights // 2)} bytes for {num_weights} weights, got {octets.numel()}")
    codes = torch.stack((octets >> 4, octets & 15), dim=1).flatten()[:num_weights]
    table = shard.take("weight_quant_map", (16,), torch.float32)
    num_blocks = -(-num_weights // state.block_size)
    scale = _block_scales(shard, state, num_blocks).repeat_interleave(state.block_size)[:num_weights]
    return ReadWeight((table[codes.int()] * scale).view(shard.num_rows, shard.num_columns))


def _block_scales(shard: ShardTensors, state: _State, num_blocks: int) -> torch.Tensor:
    """fp32 [num_blocks]; where they are rounded themselves, to 8 bits by a table, in larger blocks."""
    if not state.is_nested:
        return shard.take("weight_absmax", (num_blocks,), torch.float32)
    codes = shard.take("weight_absmax", (num_blocks,), torch.uint8)
    table = shard.take("weight_nested_quant_map", (256,), torch.float32)
    size = state.nested_block_size
    largest = shard.take("weight_nested_absmax", (-(-num_blocks // size),), torch.float32)
    return table[codes.int()] * largest.repeat_interleave(size)[:num_blocks] + state.nested_offset


@final
class _State:
    """The JSON that lies beside a weight, as bytes."""

    def __init__(self, shard: ShardTensors, octets: torch.Tensor) -> None:
        try:
            values: Any = json.loads(bytes(octets.tolist()))
            fields = Fields(values if isinstance(values, dict) else {}, _PLACE)
            shape = fields.raw("shape")
            self.block_size = fields.integer("blocksize")
            self.is_nested = fields.has("nested_blocksize")
            self.nested_block_size = fields.integer("nested_blocksize", 1)
            self.nested_offset = fields.number("nested_offset", 0.0)
        except (ValueError, ModelError) as error:
            shard.refuse(f"its quant_state cannot be read: {error}")
        if shape is not None and shape != [shard.num_rows, shard.num_columns]:
            shard.refuse(
                f"its quant_state states the shape {shape}, the model's config {[shard.num_rows, shard.num_columns]}"
            )
