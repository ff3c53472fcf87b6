"""`format=compressed-tensors`: packed int4 and int8 weights, and W8A8 in int8.

Source: the layouts that the compressed-tensors project publishes with its compressors.
"""

from __future__ import annotations

from typing import Any, final

import torch

from tokenloom.quantization.packed_words import packed_words
from tokenloom.quantization.rounded_weight import RoundedWeight
from tokenloom.quantization.writer import CheckpointWriter, Making

__all__ = ["CompressedTensorsWriter"]


@final
class CompressedTensorsWriter(CheckpointWriter):
    """weight_packed [N, K bits / 32], weight_scale [N, G], weight_zero_point [N bits / 32, G]; W8A8: weight int8."""

    name = "compressed-tensors"
    allowed_bits = (4, 8)
    is_symmetric_usually = True
    stores_order = False  # it once could, by weight_g_idx; the library refuses that since
    takes_activations = True
    plugin = "compressed_tensors"

    def scale_dtype(self, model_dtype: torch.dtype) -> torch.dtype:
        return model_dtype

    def tensors(self, weight: RoundedWeight, making: Making) -> dict[str, torch.Tensor]:
        assert weight.is_in_order, "this format stores no order of columns"
        scheme = weight.scheme
        if making.rounds_activations:
            return {"weight": (weight.codes ^ 128).view(torch.int8), "weight_scale": weight.scale.contiguous()}
        tensors = {
            "weight_packed": packed_words(weight.codes, scheme.bits),
            "weight_scale": weight.scale.contiguous(),
            "weight_shape": torch.tensor(weight.codes.shape),
        }
        if not scheme.is_symmetric:
            tensors["weight_zero_point"] = packed_words(weight.zero.T.contiguous(), scheme.bits).T.contiguous()
        return tensors

    def settings(self, making: Making) -> dict[str, Any]:
        activations: dict[str, Any] | None = None
        if making.rounds_activations:
            activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
        group = {
            "targets": ["Linear"],
            "weights": _weight_settings(making),
            "input_activations": activations,
            "output_activations": None,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "int-quantized" if making.rounds_activations else "pack-quantized",
            "quantization_status": "compressed",
            "ignore": ["lm_head", *making.skipped],
            "kv_cache_scheme": None,
            "config_groups": {"group_0": group},
        }

    def check_words(self, name: str, num_rows: int, num_columns: int, bits: int) -> None:
        """Words are filled up with zeros."""


def _weight_settings(making: Making) -> dict[str, Any]:
    scheme = making.scheme
    is_grouped = scheme.group_size != -1
    settings: dict[str, Any] = {
        "num_bits": scheme.bits,
        "type": "int",
        "symmetric": scheme.is_symmetric,
        "strategy": "group" if is_grouped else "channel",
        "group_size": scheme.group_size if is_grouped else None,
        "dynamic": False,
    }
    if making.act_order and is_grouped:
        settings["actorder"] = "weight"
    return settings
