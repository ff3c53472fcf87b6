"""`quant=awq`: reads checkpoints of AutoAWQ in the packing "gemm". 4 bits, a scale and a zero point per group.

Source: the layout that AutoAWQ publishes with its `WQLinear_GEMM`.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import LayerSpec, QuantConfig, QuantContext
from tokenloom_quant.affine_format import CheckpointFormat, ShardTensors
from tokenloom_quant.affine_quantizer import CheckpointQuantizer, StoredAs, checkpoint_settings
from tokenloom_quant.affine_weight import ReadWeight, affine_codes
from tokenloom_quant.affine_words import unpacked

__all__ = ["AWQConfig", "AWQFormat"]

_BITS = 4
_PER_WORD = 8
_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""The place in a word of each of eight neighbours."""
_HEAD = "lm_head"


@final
class AWQConfig(QuantConfig):
    """Settings of `quant=awq`; all else is the checkpoint's."""

    weights: StoredAs = Field(
        default="auto",
        description="packed, multiplied as they are; dense, dequantized at load; or auto, packed where that can be.",
    )

    def build(self, context: QuantContext) -> CheckpointQuantizer:
        weight_format = AWQFormat(checkpoint_settings("awq", "awq", context))
        return CheckpointQuantizer("awq", weight_format, context, self.weights)


@final
class AWQFormat(CheckpointFormat):
    """qweight int32 [K, N / 8], qzeros int32 [G, N / 8], scales [G, N].

    Raises:
        ModelError: another packing or number of bits.
    """

    def __init__(self, settings: Fields) -> None:
        version = settings.text("version", settings.text("format", "gemm")).lower()
        backend = settings.text("backend", "autoawq").lower()
        if version != "gemm" or backend != "autoawq":
            raise ModelError(
                f"quant=awq reads the packing 'gemm' of AutoAWQ, got version {version!r} of {backend!r}; take a "
                "checkpoint in that packing, or one of quant_method 'gptq' or 'compressed-tensors'"
            )
        bits = settings.integer("bits" if settings.has("bits") else "w_bit", maximum=8)
        if bits != _BITS:
            raise ModelError(f"quant=awq reads weights of 4 bits, got {bits}; take a checkpoint in 4 bits")
        key = "group_size" if settings.has("group_size") else "q_group_size"
        self._group_size = settings.integer(key, minimum=-1)
        if self._group_size == 0:
            raise ModelError(f"{settings.path}: {key!r} must be -1 or above 0, got 0")
        self._covers_head = settings.flag("lm_head", False)

    def covers(self, spec: LayerSpec) -> bool:
        return spec.name != _HEAD or self._covers_head

    def read(self, shard: ShardTensors) -> ReadWeight:
        num_rows, num_columns = shard.num_rows, shard.num_columns
        group_size = num_columns if self._group_size == -1 else self._group_size
        if num_columns % group_size:
            shard.refuse(
                f"groups of {group_size} do not divide its {num_columns} input features; take a checkpoint with "
                "group_size -1 or one that divides them"
            )
        if num_rows % _PER_WORD:
            shard.refuse(f"the format packs {_PER_WORD} output features a word, which do not divide its {num_rows}")
        num_groups, num_words = num_columns // group_size, num_rows // _PER_WORD
        codes = _neighbours(shard.take("qweight", (num_columns, num_words), torch.int32))  # [K, N]
        zeros = _neighbours(shard.take("qzeros", (num_groups, num_words), torch.int32))  # [G, N]
        scales = shard.take("scales", (num_groups, num_rows), torch.float16, torch.bfloat16, torch.float32)
        return ReadWeight(affine_codes(codes.T.contiguous(), scales.T, zeros.T, _BITS, group_size))


def _neighbours(words: torch.Tensor) -> torch.Tensor:
    """int32 [rows, N / 8] -> uint8 [rows, N], each word's eight numbers put side by side."""
    return unpacked(words, _BITS).view(words.shape[0], -1, _PER_WORD)[..., _PLACES].flatten(1)
