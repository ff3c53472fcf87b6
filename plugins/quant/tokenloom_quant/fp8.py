"""`quant=fp8`: reads checkpoints in 8-bit floats (quant_method fp8), one scale for a tensor or for each block of it.

GPUs with e4m3 multiply them as they are, with activations rounded by row; elsewhere they are dequantized at load.
"""

from __future__ import annotations

from typing import Literal, final

import torch
from pydantic import Field

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import LayerSpec, QuantConfig, QuantContext
from tokenloom_quant.affine_format import CheckpointFormat, ShardTensors
from tokenloom_quant.affine_quantizer import CheckpointQuantizer, checkpoint_settings
from tokenloom_quant.affine_weight import ReadWeight
from tokenloom_quant.fp8_blocks import FP8, FP8_REMARK, scaled_blocks

__all__ = ["FP8Config", "FP8Format"]

_HEAD = "lm_head"
_SCALES = ("weight_scale_inv", "weight_scale")
"""Both multiply, whatever the first is called."""
_SCALE_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e8m0fnu)


@final
class FP8Config(QuantConfig):
    """Settings of `quant=fp8`; all else is the checkpoint's."""

    weights: Literal["auto", "dense"] = Field(
        default="auto", description="dense, dequantized at load; or auto, packed where a GPU multiplies them so."
    )

    def build(self, context: QuantContext) -> CheckpointQuantizer:
        weight_format = FP8Format(checkpoint_settings("fp8", "fp8", context))
        # Only Triton's products take 8-bit floats: for others nothing is compiled.
        stored_as = self.weights if context.operations == "triton" else "dense"
        return CheckpointQuantizer("fp8", weight_format, context, stored_as)


@final
class FP8Format(CheckpointFormat):
    """weight float8_e4m3fn [N, K] with weight_scale_inv [ceil(N / rows), ceil(K / columns)], or one weight_scale.

    Raises:
        ModelError: another type of floats, or settings that contradict each other.
    """

    def __init__(self, settings: Fields) -> None:
        kind = settings.text("fmt", "e4m3")
        if kind not in ("e4m3", "float8_e4m3fn"):
            raise ModelError(f"quant=fp8 reads floats of the type e4m3, got fmt {kind!r}; take a checkpoint in e4m3")
        if not settings.flag("is_checkpoint_fp8_serialized", True):
            raise ModelError(
                "quant=fp8 reads weights that are stored in 8 bits, and is_checkpoint_fp8_serialized is false: "
                "take the key quantization_config out of config.json, and choose quant=int8 to round at load"
            )
        scheme = settings.text("activation_scheme", "dynamic")
        self._block = _block(settings)
        if scheme not in ("dynamic", "static") or (scheme == "static" and self._block is not None):
            allowed = "'dynamic' with blocks" if self._block is not None else "'dynamic' or 'static'"
            raise ModelError(f"{settings.path}: 'activation_scheme' must be {allowed}, got {scheme!r}")

    def covers(self, spec: LayerSpec) -> bool:
        return spec.name != _HEAD

    def read(self, shard: ShardTensors) -> ReadWeight:
        num_rows, num_columns = shard.num_rows, shard.num_columns
        weight = shard.take("weight", (num_rows, num_columns), FP8)
        name = next((name for name in _SCALES if name in shard), _SCALES[0])
        for unused in ("input_scale", "activation_scale"):
            shard.find(unused, None)
        if self._block is not None:
            rows, columns = self._block
            scale = shard.take(name, (-(-num_rows // rows), -(-num_columns // columns)), *_SCALE_DTYPES)
            values = scaled_blocks(weight, scale, rows, columns, rounds_activations=True)
            return ReadWeight(values, remark=FP8_REMARK)
        scale = shard.take(name, None, *_SCALE_DTYPES)
        if scale.numel() not in (1, num_rows):
            shard.refuse(
                f"tensor {name!r} must be one number or one for each of {num_rows} rows, got the shape "
                f"{list(scale.shape)}; blocks need 'weight_block_size' in the settings"
            )
        rows = num_rows if scale.numel() == 1 else 1
        values = scaled_blocks(weight, scale.reshape(-1, 1), rows, num_columns, rounds_activations=True)
        return ReadWeight(values, remark=FP8_REMARK)


def _block(settings: Fields) -> tuple[int, int] | None:
    sizes = settings.numbers("weight_block_size")
    if not sizes:
        return None
    if len(sizes) != 2 or not all(size >= 1 and size.is_integer() for size in sizes):
        raise ModelError(
            f"{settings.path}: 'weight_block_size' must be two sizes, such as [128, 128], got "
            f"{settings.raw('weight_block_size')!r}"
        )
    return int(sizes[0]), int(sizes[1])
