"""A linear layer's weights in the form that its product wants, made once when the layer is loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Literal, final

import torch
from torch.nn import functional

from tokenloom.ops import torch_ops

__all__ = ["GatedAct", "PackLinear", "PackedLinear", "PlainLinear"]

GatedAct = Literal["silu", "gelu_tanh"]
"""The activation of a gated feed-forward network, by its name in model configs."""


class PackedLinear(ABC):
    """A weight [N, K] and a bias [N] or none."""

    @abstractmethod
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias: [M, K] -> [M, N], dtype of x. M may be 0; rows may be strided."""

    @abstractmethod
    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        """The same as fp32 [M, N]; rounded to the dtype of x before where the product gives that."""

    @abstractmethod
    def apply_gated(self, x: torch.Tensor, activation: GatedAct) -> torch.Tensor:
        """activation(first half of the columns of `apply`) * the second half: [M, K] -> [M, N / 2]."""

    @abstractmethod
    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of the weight: int64 [n] -> [n, K]. What a tied embedding looks up."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Of weight and bias as they are stored."""


PackLinear = Callable[[torch.Tensor, torch.Tensor | None], PackedLinear]
"""(weight [N, K], bias [N] or None) -> the packed layer; neither is changed. Tensors without memory (meta) will do
where only `num_bytes` is asked for."""

_GATES: Mapping[GatedAct, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": torch_ops.silu_and_mul,
    "gelu_tanh": torch_ops.gelu_tanh_and_mul,
}


@final
class PlainLinear(PackedLinear):
    """The weight as it is, for a product that takes it so.

    Args:
        weight: [N, K].
        bias: [N] or None.
        product: (x, weight, bias) -> [M, N]; one of `torch_ops`.
        gates: what `apply_gated` does behind the product: [M, N] -> [M, N / 2].
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        product: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor] = torch_ops.linear,
        gates: Mapping[GatedAct, Callable[[torch.Tensor], torch.Tensor]] = _GATES,
    ) -> None:
        self._weight = weight
        self._bias = bias
        self._product = product
        self._gates = gates

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x, self._weight, self._bias)

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        return self.apply(x).float()

    def apply_gated(self, x: torch.Tensor, activation: GatedAct) -> torch.Tensor:
        return self._gates[activation](self.apply(x))

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return functional.embedding(indices, self._weight)

    @property
    def num_bytes(self) -> int:
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)
