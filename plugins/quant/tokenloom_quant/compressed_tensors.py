"""`quant=compressed_tensors`: reads checkpoints of llm-compressor: packed int4 and int8, W8A8 in int8, 8-bit floats.

Source: the layouts that the compressed-tensors project publishes with its compressors.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field

from tokenloom.interfaces.quant import LayerSpec, QuantConfig, QuantContext
from tokenloom.models.skip_list import part_names
from tokenloom_quant.affine_format import CheckpointFormat, ShardTensors
from tokenloom_quant.affine_quantizer import CheckpointQuantizer, StoredAs, checkpoint_settings
from tokenloom_quant.affine_weight import ActivationRounding, ReadWeight, affine_codes, column_order
from tokenloom_quant.affine_words import unpacked
from tokenloom_quant.compressed_tensors_schemes import SchemeTable, WeightScheme
from tokenloom_quant.fp8_blocks import FP8, FP8_REMARK, scaled_blocks

__all__ = ["CompressedTensorsConfig", "CompressedTensorsFormat"]

_SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_WORD_BITS = 32


@final
class CompressedTensorsConfig(QuantConfig):
    """Settings of `quant=compressed_tensors`; all else is the checkpoint's."""

    weights: StoredAs = Field(
        default="auto",
        description="packed, multiplied as they are; dense, dequantized at load; or auto, packed where that can be.",
    )

    def build(self, context: QuantContext) -> CheckpointQuantizer:
        settings = checkpoint_settings("compressed_tensors", "compressed-tensors", context)
        weight_format = CompressedTensorsFormat(SchemeTable(settings))
        return CheckpointQuantizer("compressed_tensors", weight_format, context, self.weights)


@final
class CompressedTensorsFormat(CheckpointFormat):
    """Which of the layouts a layer has, its tensors tell; what they mean, its scheme."""

    def __init__(self, table: SchemeTable) -> None:
        self._table = table

    def covers(self, spec: LayerSpec) -> bool:
        return any(self._table.scheme_of(part) is not None for part in part_names(spec))

    def read(self, shard: ShardTensors) -> ReadWeight:
        scheme = self._table.scheme_of(shard.part)
        if scheme is None:
            shard.refuse("no group of the settings names it, but its weights are not plain")
        if scheme.kind == "float":
            return _read_floats(shard, scheme)
        return _read_packed(shard, scheme) if "weight_packed" in shard else _read_int8(shard, scheme)


def _read_packed(shard: ShardTensors, scheme: WeightScheme) -> ReadWeight:
    """weight_packed int32 [N, ceil(K bits / 32)], 2^(bits - 1) being zero; zero points are packed along N."""
    if scheme.activations != "full":
        shard.refuse("packed weights with rounded activations cannot be read; take W8A8 as 'int-quantized', or W4A16")
    num_rows, num_columns, bits = shard.num_rows, shard.num_columns, scheme.bits
    group_size, num_groups = _groups(shard, scheme)
    num_words = -(-num_columns * bits // _WORD_BITS)
    codes = unpacked(shard.take("weight_packed", (num_rows, num_words), torch.int32), bits)[:, :num_columns]
    stated = shard.find("weight_shape", (2,), torch.int64, torch.int32)
    if stated is not None and stated.tolist() != [num_rows, num_columns]:
        shard.refuse(f"'weight_shape' is {stated.tolist()}; the model's config asks for {[num_rows, num_columns]}")
    scale = _row_scales(shard, scheme, num_groups)
    zero = None
    if not scheme.is_symmetric:
        words = shard.take("weight_zero_point", (-(-num_rows * bits // _WORD_BITS), num_groups), torch.int32)
        zero = unpacked(words.T, bits)[:, :num_rows].T  # [N, G]
    order = _order(shard, scheme, group_size)
    if order is not None:
        codes = codes[:, order]
    return ReadWeight(affine_codes(codes.contiguous(), scale, zero, bits, group_size), order)


def _read_int8(shard: ShardTensors, scheme: WeightScheme) -> ReadWeight:
    """weight int8 [N, K], and what its activations are rounded with."""
    group_size, num_groups = _groups(shard, scheme)
    weight = shard.take("weight", (shard.num_rows, shard.num_columns), torch.int8)
    codes = weight.view(torch.uint8) ^ 128  # 128 is zero
    scale = _row_scales(shard, scheme, num_groups)
    zero = None
    if not scheme.is_symmetric:
        zero = _spread(shard.take("weight_zero_point", None, torch.int8), shard, scheme, num_groups).int() + 128
    order = _order(shard, scheme, group_size)
    if order is not None:
        codes = codes[:, order]
    return ReadWeight(affine_codes(codes, scale, zero, 8, group_size), order, _rounding(shard, scheme))


def _read_floats(shard: ShardTensors, scheme: WeightScheme) -> ReadWeight:
    """weight float8_e4m3fn [N, K], a scale for a tensor, a row, a group of columns or a block."""
    num_rows, num_columns = shard.num_rows, shard.num_columns
    weight = shard.take("weight", (num_rows, num_columns), FP8)
    if scheme.strategy == "block":
        rows, columns = scheme.block
        shape = (-(-num_rows // rows), -(-num_columns // columns))
        scale = shard.take("weight_scale", shape, *_SCALE_DTYPES)
    else:
        rows, (columns, num_groups) = 1, _groups(shard, scheme)
        scale = _row_scales(shard, scheme, num_groups)
    for unused in ("input_scale", "input_zero_point", "weight_zero_point"):
        shard.find(unused, None)
    rounds = scheme.activations != "full"
    values = scaled_blocks(weight, scale, rows, columns, rounds_activations=rounds)
    return ReadWeight(values, remark=FP8_REMARK if rounds else None)


def _groups(shard: ShardTensors, scheme: WeightScheme) -> tuple[int, int]:
    """Columns that share a scale, and how many scales a row has."""
    group_size = min(scheme.group_size, shard.num_columns) if scheme.strategy == "group" else shard.num_columns
    return group_size, -(-shard.num_columns // group_size)


def _row_scales(shard: ShardTensors, scheme: WeightScheme, num_groups: int) -> torch.Tensor:
    """[N, G]."""
    return _spread(shard.take("weight_scale", None, *_SCALE_DTYPES), shard, scheme, num_groups)


def _spread(values: torch.Tensor, shard: ShardTensors, scheme: WeightScheme, num_groups: int) -> torch.Tensor:
    """What each row and group has, from one value of a tensor, or one of a row: [N, G]."""
    num_wanted = 1 if scheme.strategy == "tensor" else shard.num_rows * num_groups
    if values.numel() != num_wanted or (values.ndim == 2 and num_groups > 1 and values.shape[0] != shard.num_rows):
        shard.refuse(
            f"scales or zero points by {scheme.strategy} must be {num_wanted} numbers for {shard.num_rows} rows and "
            f"{num_groups} groups, got the shape {list(values.shape)}"
        )
    if scheme.strategy == "tensor":
        return values.reshape(1, 1).expand(shard.num_rows, 1)
    return values.reshape(shard.num_rows, num_groups)


def _order(shard: ShardTensors, scheme: WeightScheme, group_size: int) -> torch.Tensor | None:
    group_index = shard.find("weight_g_idx", (shard.num_columns,), torch.int32, torch.int64)
    if group_index is None and scheme.is_reordered:
        shard.refuse("lacks 'weight_g_idx', which actorder='group' needs; fetch the model again")
    if group_index is None or bool((group_index < 0).any()) or group_size == shard.num_columns:
        return None  # -1: columns are in order
    try:
        return column_order(group_index, group_size)
    except ValueError as error:
        shard.refuse(f"'weight_g_idx' cannot be right: {error}; fetch the model again")


def _rounding(shard: ShardTensors, scheme: WeightScheme) -> ActivationRounding | None:
    if scheme.activations != "static":
        return ActivationRounding() if scheme.activations == "dynamic" else None
    scale = shard.take("input_scale", None, *_SCALE_DTYPES)
    zero = shard.find("input_zero_point", None, torch.int8) if scheme.has_zero_activation else None
    if not scheme.has_zero_activation:
        shard.find("input_zero_point", None)  # zero, where it is stored at all
    elif zero is None:
        shard.refuse("lacks 'input_zero_point', which activations without symmetry need")
    if scale.numel() != 1 or (zero is not None and zero.numel() != 1):
        shard.refuse(f"'input_scale' must be one number, got the shape {list(scale.shape)}")
    if not float(scale) > 0:
        shard.refuse(f"'input_scale' must be above 0, got {float(scale)}; calibrate the checkpoint again")
    return ActivationRounding(float(scale), 0 if zero is None else int(zero))
