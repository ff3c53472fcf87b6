"""The arithmetic of int8 weights: rounding rows to int8, and x @ (q * s).T without keeping q * s.

Two ways to multiply, both exact in the weights: PyTorch's int8 product for few rows in bf16 on a CPU, and block-wise
conversion followed by an ordinary product for everything else.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import final

import torch
from torch.nn import functional

from tokenloom.ops import torch_ops

__all__ = ["Int8Product", "quantize_rows"]

_logger = logging.getLogger(__name__)

_MAX_LEVEL = 127
# Measured: up to some twenty rows the int8 product beats converting the weights; its time grows with every row.
_MAX_INT8_ROWS = 20
_INT8_MULTIPLE = 16  # the op reads past rows whose length is no multiple of 16, and does not check
_BLOCK_ELEMENTS = 1 << 20  # converted at a time: a few megabytes that the allocator reuses, whatever the layer's size


def quantize_rows(weight: torch.Tensor, scale_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds each row to int8.

    Args:
        weight: [N, K], floating.
        scale_dtype: the dtype that scales are kept in.

    Returns:
        (q int8 [N, K] in -127..127, scale [N] > 0) with |weight - q * scale| <= scale / 2. A scale that is not finite
        tells of a row that is not, or that `scale_dtype` cannot hold.
    """
    wide = weight.to(torch.float32)
    scale = wide.abs().amax(dim=1).div_(_MAX_LEVEL).to(scale_dtype)  # [N]
    scale.clamp_(min=torch.finfo(scale_dtype).smallest_normal)  # a row of zeros stays one
    quantized = wide.div(scale.float().unsqueeze(1)).round_().clamp_(-_MAX_LEVEL, _MAX_LEVEL)
    return quantized.to(torch.int8), scale


@final
class Int8Product:
    """Multiplies by int8 weights.

    Args:
        quantized: int8 [N, K].
        scale: [N], activation dtype.
        bias: [N], activation dtype, or None.
        deterministic: a row's result must not depend on the other rows, bit for bit.
    """

    def __init__(
        self, quantized: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, *, deterministic: bool
    ) -> None:
        self._num_columns = quantized.shape[1]
        self._scale = scale
        self._bias = bias
        self._has_int8_op = (
            not deterministic and scale.dtype == torch.bfloat16 and scale.device.type == "cpu" and _is_int8_op_right()
        )
        # Zeros up to the next multiple change no product, and the op is then safe for every K.
        self._padding = -self._num_columns % _INT8_MULTIPLE if self._has_int8_op else 0
        self._quantized = functional.pad(quantized, (0, self._padding)).contiguous()
        self._linear = torch_ops.row_invariant_linear if deterministic else torch_ops.linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[M, K] -> [M, N]: x @ (q * s).T + bias."""
        if self._has_int8_op and 0 < x.shape[0] <= _MAX_INT8_ROWS:
            padded = functional.pad(x, (0, self._padding)) if self._padding else x.contiguous()
            result: torch.Tensor = torch.ops.aten._weight_int8pack_mm(padded, self._quantized, self._scale)
            return result if self._bias is None else result.add_(self._bias)
        return self._convert_and_multiply(x)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """int64 [M] -> [M, K]: rows of q * s, rounded to the activation dtype."""
        rows = self._quantized[indices, : self._num_columns].to(self._scale.dtype)
        return rows.mul_(self._scale[indices].unsqueeze(1))

    @property
    def num_bytes(self) -> int:
        return self._quantized.nbytes + self._scale.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def _convert_and_multiply(self, x: torch.Tensor) -> torch.Tensor:
        num_rows = self._quantized.shape[0]
        step = max(1, _BLOCK_ELEMENTS // self._num_columns)
        blocks = [self._multiply_block(x, start, min(start + step, num_rows)) for start in range(0, num_rows, step)]
        result = blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-1)  # [M, N]
        if self._bias is None:
            return result if self._scales_weights else result.mul_(self._scale)
        return result.add_(self._bias) if self._scales_weights else torch.addcmul(self._bias, result, self._scale)

    def _multiply_block(self, x: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        block = self._quantized[start:stop, : self._num_columns].to(x.dtype)  # exact: every dtype holds -127..127
        if self._scales_weights:
            block.mul_(self._scale[start:stop].unsqueeze(1))
        return self._linear(x, block, None)

    @property
    def _scales_weights(self) -> bool:
        # Scaling the result instead of the weights is faster and rounds less, but x @ q.T overflows float16.
        return self._scale.dtype == torch.float16


@cache
def _is_int8_op_right() -> bool:
    """Whether this build of PyTorch has the int8 product and it multiplies correctly, tried once on small integers."""
    x = torch.arange(-16, 16, dtype=torch.bfloat16).view(2, 16)
    quantized = torch.arange(-32, 32, dtype=torch.int8).view(4, 16)
    scale = torch.tensor([1.0, 0.5, 2.0, 0.25], dtype=torch.bfloat16)
    try:
        result: torch.Tensor = torch.ops.aten._weight_int8pack_mm(x, quantized, scale)
    except (RuntimeError, AttributeError) as error:
        _logger.warning("this build of PyTorch has no int8 product (%s); quant=int8 converts weights instead", error)
        return False
    expected = (x.float() @ quantized.float().T * scale.float()).to(torch.bfloat16)
    is_right = torch.equal(result, expected)
    if not is_right:
        _logger.warning("the int8 product of this build of PyTorch is wrong; quant=int8 converts weights instead")
    return is_right
