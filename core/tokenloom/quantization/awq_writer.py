"""`format=awq`: the layout of AutoAWQ's packing "gemm". 4 bits, scales in float16.

Source: the layout that AutoAWQ publishes with its `WQLinear_GEMM`.
"""

from __future__ import annotations

from typing import Any, final

import torch

from tokenloom.quantization.packed_words import packed_words
from tokenloom.quantization.rounded_weight import RoundedWeight
from tokenloom.quantization.writer import CheckpointWriter, Making

__all__ = ["AWQWriter"]

_PER_WORD = 8
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbouring outputs lies at each place of a word, lowest bits first."""


@final
class AWQWriter(CheckpointWriter):
    """qweight [K, N / 8], qzeros [G, N / 8], scales [G, N]."""

    name = "awq"
    allowed_bits = (4,)
    is_symmetric_usually = False
    stores_order = False
    plugin = "awq"

    def scale_dtype(self, model_dtype: torch.dtype) -> torch.dtype:
        return torch.float16

    def tensors(self, weight: RoundedWeight, making: Making) -> dict[str, torch.Tensor]:
        assert weight.is_in_order, "this format stores no order of columns"
        return {
            "qweight": _words(weight.codes),
            "qzeros": _words(weight.zero),
            "scales": weight.scale.T.contiguous(),
        }

    def settings(self, making: Making) -> dict[str, Any]:
        return {
            "quant_method": "awq",
            "bits": making.scheme.bits,
            "group_size": making.scheme.group_size,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": ["lm_head", *making.skipped],
        }

    def check_words(self, name: str, num_rows: int, num_columns: int, bits: int) -> None:
        if num_rows % _PER_WORD:
            self.refuse_size(name, "output", num_rows, _PER_WORD)


def _words(values: torch.Tensor) -> torch.Tensor:
    """uint8 [N, any] -> int32 [any, N / 8]."""
    by_word = values.T.reshape(values.shape[1], -1, _PER_WORD)
    return packed_words(by_word[..., list(_ORDER)].flatten(1), 4)
