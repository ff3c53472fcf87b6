"""The fused operations in C++, for bfloat16 on CPUs: built on first use, chosen by `engine.operations`.

A row's result never depends on the other rows but for the linear product, which rounds one and two rows differently
where the processor has tiles; `rows_apart` forbids that.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, final

import torch
from torch.nn import functional

from tokenloom.ops.native import load_extension
from tokenloom.ops.packed_linear import GatedAct, PackedLinear
from tokenloom.ops.weight_memory import WeightMemory

__all__ = ["NativeLinear", "native_module"]

_CSRC = Path(__file__).parent / "native" / "csrc"
_PANEL = 32  # kPanel of linear.h: output features side by side
_DEPTH = 32  # kDepth: the multiple that K is filled up to


@cache
def native_module() -> ModuleType:
    """The extension; the first call may build it.

    Raises:
        NativeBuildError: it cannot be built here; says what to install, and to choose engine.operations=torch.
    """
    return load_extension(
        "tokenloom_ops",
        sources=[_CSRC / "binding.cpp", _CSRC / "ranking.cpp"],
        kernels=[
            _CSRC / "draw.cpp",
            _CSRC / "linear.cpp",
            _CSRC / "linear_amx.cpp",
            _CSRC / "linear_gated.cpp",
            _CSRC / "mass.cpp",
            _CSRC / "pointwise.cpp",
            _CSRC / "row_max.cpp",
            _CSRC / "smallest_sizes.cpp",
        ],
        include_dirs=[_CSRC],
        instead="engine.operations=torch",
    )


@final
class NativeLinear(PackedLinear):
    """Weights in panels of 32 output features, pairs of input features side by side; the only copy.

    Args:
        weight: [N, K], bfloat16.
        bias: [N] or None, bfloat16.
        memory: where the packed weights go; None stands for some of their own.
        rows_apart: a row's result must have the same bits in any batch.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        memory: WeightMemory | None = None,
        rows_apart: bool = False,
    ) -> None:
        self._num_rows, self._size = weight.shape
        self._packed = _pack(weight, memory)  # [panels, pairs, 32, 2]
        self._num_bias_bytes = 0 if bias is None else bias.nbytes
        self._product: Any = None  # without memory there is nothing to multiply
        if not weight.is_meta:
            bias = None if bias is None else bias.contiguous()
            self._product = native_module().Linear(self._packed, bias, self._size, self._num_rows, rows_apart)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self._product.apply(x)
        return product

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self._product.apply_float32(x)
        return product

    def apply_gated(self, x: torch.Tensor, activation: GatedAct) -> torch.Tensor:
        call = self._product.apply_silu_gated if activation == "silu" else self._product.apply_gelu_tanh_gated
        product: torch.Tensor = call(x)
        return product

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self._product.rows(indices.contiguous())
        return rows

    @property
    def num_bytes(self) -> int:
        return self._packed.nbytes + self._num_bias_bytes


def _pack(weight: torch.Tensor, memory: WeightMemory | None) -> torch.Tensor:
    """[N, K] -> [ceil(N / 32), pairs, 32, 2], zeros where there is no weight; see linear.h."""
    assert weight.dtype == torch.bfloat16, f"weights of {weight.dtype}"
    num_rows, size = weight.shape
    padding = (0, -size % _DEPTH, 0, -num_rows % _PANEL)
    # Even where there is nothing to add, pad would copy.
    filled = (functional.pad(weight, padding) if any(padding) else weight).contiguous()
    if filled.storage_offset() % 2:  # a part of a file that begins within a word
        filled = filled.clone()
    # A pair is moved as one word: copying runs along the longest dimension that it finds, which would be the pair.
    words = filled.view(torch.int32).view(-1, _PANEL, filled.shape[1] // 2).transpose(1, 2)  # [panels, pairs, 32]
    shape = (*words.shape, 2)
    target = weight.new_empty(shape) if memory is None else memory.empty(shape, weight.dtype)
    target.view(torch.int32).squeeze(-1).copy_(words)
    return target
