"""`format=gptq`: the layout of GPTQ. Scales in float16.

Symmetric weights are written in version 1, which stores zero points less one and is read by every engine. With zero
points of their own they are written in version 2, which stores them as they are: GPTQModel reads no others.

Source: the layouts that GPTQModel publishes with its linear layers and `QuantizeConfig`.
"""

from __future__ import annotations

import re
from typing import Any, final

import torch

from tokenloom.quantization.packed_words import packed_words
from tokenloom.quantization.rounded_weight import RoundedWeight, RoundingScheme
from tokenloom.quantization.writer import CheckpointWriter, Making

__all__ = ["GPTQWriter"]

_WORD_BITS = 32


@final
class GPTQWriter(CheckpointWriter):
    """qweight [K bits / 32, N], qzeros [G, N bits / 32], scales [G, N], g_idx [K]."""

    name = "gptq"
    allowed_bits = (2, 3, 4, 8)
    is_symmetric_usually = True
    stores_order = True
    takes_short_groups = True
    plugin = "gptq"

    def scale_dtype(self, model_dtype: torch.dtype) -> torch.dtype:
        return torch.float16

    def tensors(self, weight: RoundedWeight, making: Making) -> dict[str, torch.Tensor]:
        bits = weight.scheme.bits
        return {
            "qweight": packed_words(weight.codes, bits).T.contiguous(),
            "qzeros": packed_words((weight.zero - _zero_offset(weight.scheme)).T.contiguous(), bits),
            "scales": weight.scale.T.contiguous(),
            "g_idx": weight.group_index.int(),
        }

    def settings(self, making: Making) -> dict[str, Any]:
        scheme = making.scheme
        settings: dict[str, Any] = {
            "quant_method": "gptq",
            "bits": scheme.bits,
            "group_size": scheme.group_size,
            # Groups that were laid beforehand are those of columns in order, whatever the order of rounding was.
            "desc_act": making.act_order and not making.static_groups,
            "static_groups": making.static_groups,
            "sym": scheme.is_symmetric,
            "true_sequential": True,
            "lm_head": False,
            "checkpoint_format": "gptq" if _zero_offset(scheme) else "gptq_v2",
            "pack_dtype": "int32",
            "meta": {"quantizer": [f"tokenloom:{making.version}"]},
        }
        if making.damping is not None:
            settings["damp_percent"] = making.damping
        if making.skipped:
            settings["dynamic"] = {f"-:^{re.escape(name)}$": {} for name in making.skipped}
        return settings

    def check_words(self, name: str, num_rows: int, num_columns: int, bits: int) -> None:
        multiple = _WORD_BITS if bits == 3 else _WORD_BITS // bits
        for what, size in (("input", num_columns), ("output", num_rows)):
            if size % multiple:
                self.refuse_size(name, what, size, multiple)


def _zero_offset(scheme: RoundingScheme) -> int:
    """What the layout takes from zero points that it stores."""
    return 1 if scheme.is_symmetric else 0
