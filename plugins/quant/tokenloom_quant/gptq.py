"""`quant=gptq`: reads checkpoints of GPTQ, both versions of its layout: 2, 3, 4 or 8 bits, columns in any order.

Source: the layouts that AutoGPTQ and GPTQModel publish. Version 1 stores each zero point less one.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import LayerSpec, QuantConfig, QuantContext
from tokenloom.models.skip_list import part_names
from tokenloom_quant.affine_format import CheckpointFormat, ShardTensors
from tokenloom_quant.affine_quantizer import CheckpointQuantizer, StoredAs, checkpoint_settings
from tokenloom_quant.affine_weight import ReadWeight, affine_codes, column_order
from tokenloom_quant.affine_words import unpacked
from tokenloom_quant.gptq_overrides import GPTQOverrides, GPTQScheme

__all__ = ["GPTQConfig", "GPTQFormat"]

_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
"""What each layout adds to the zero points that it stores."""
_HEAD = "lm_head"
_WORD_BITS = 32


@final
class GPTQConfig(QuantConfig):
    """Settings of `quant=gptq`; all else is the checkpoint's."""

    weights: StoredAs = Field(
        default="auto",
        description="packed, multiplied as they are; dense, dequantized at load; or auto, packed where that can be.",
    )

    def build(self, context: QuantContext) -> CheckpointQuantizer:
        weight_format = GPTQFormat(checkpoint_settings("gptq", "gptq", context))
        return CheckpointQuantizer("gptq", weight_format, context, self.weights)


@final
class GPTQFormat(CheckpointFormat):
    """qweight int32 [ceil(K bits / 32), N], qzeros int32 [G, ceil(N bits / 32)], scales [G, N], perhaps g_idx [K].

    Raises:
        ModelError: another layout or number of bits.
    """

    def __init__(self, settings: Fields) -> None:
        key = "checkpoint_format" if settings.has("checkpoint_format") else "format"
        layout = settings.text(key, "gptq")
        if settings.flag("is_marlin_format", False):
            layout = "marlin"
        if layout not in _ZERO_OFFSETS:
            raise ModelError(
                f"quant=gptq reads the layouts {' and '.join(_ZERO_OFFSETS)}, got {layout!r}; take a checkpoint in one "
                "of them, or convert it with GPTQModel"
            )
        pack_dtype = settings.text("pack_dtype", "int32")
        if pack_dtype != "int32":
            raise ModelError(f"quant=gptq reads words of int32, got pack_dtype {pack_dtype!r}; save it with int32")
        self._zero_offset = _ZERO_OFFSETS[layout]
        self._overrides = GPTQOverrides(settings)
        self._covers_head = settings.flag("lm_head", False)

    def covers(self, spec: LayerSpec) -> bool:
        if spec.name == _HEAD and not self._covers_head:
            return False
        return any(self._overrides.scheme_of(part) is not None for part in part_names(spec))

    def read(self, shard: ShardTensors) -> ReadWeight:
        scheme = self._overrides.scheme_of(shard.part)
        if scheme is None:
            shard.refuse("the setting 'dynamic' says that it is not quantized, but its weights are packed")
        bits, num_rows, num_columns = scheme.bits, shard.num_rows, shard.num_columns
        group_size = num_columns if scheme.group_size == -1 else min(scheme.group_size, num_columns)
        num_groups = -(-num_columns // group_size)
        for what, size in (("input", num_columns), ("output", num_rows)):
            if size * bits % _WORD_BITS:
                shard.refuse(
                    f"its {size} {what} features of {bits} bits do not fill words of 32 bits; the format needs a "
                    f"multiple of {_WORD_BITS if bits == 3 else _WORD_BITS // bits}"
                )
        words = shard.take("qweight", (num_columns * bits // _WORD_BITS, num_rows), torch.int32)
        codes = unpacked(words.T, bits)  # [N, K]
        zeros = unpacked(shard.take("qzeros", (num_groups, num_rows * bits // _WORD_BITS), torch.int32), bits)  # [G, N]
        # A zero point of 0 is stored by version 1 as -1, all bits set.
        zeros = zeros + self._zero_offset & (1 << bits) - 1
        scales = shard.take("scales", (num_groups, num_rows), torch.float16, torch.bfloat16, torch.float32)
        order = self._order(shard, scheme, group_size)
        if order is not None:
            codes = codes[:, order]
        return ReadWeight(affine_codes(codes, scales.T, zeros.T, bits, group_size), order)

    def _order(self, shard: ShardTensors, scheme: GPTQScheme, group_size: int) -> torch.Tensor | None:
        group_index = shard.find("g_idx", (shard.num_columns,), torch.int32, torch.int64)
        if group_index is None:
            if scheme.is_reordered and group_size < shard.num_columns:
                shard.refuse("lacks 'g_idx', without which desc_act=true leaves the groups of its columns unknown")
            return None
        if group_size == shard.num_columns:
            return None  # one group, whatever the tensor says
        try:
            return column_order(group_index, group_size)
        except ValueError as error:
            shard.refuse(f"'g_idx' cannot be right: {error}; fetch the model again")
