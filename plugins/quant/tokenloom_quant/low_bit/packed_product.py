"""What a product with a packed weight can do, whatever it runs on."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

__all__ = ["PackedProduct"]


class PackedProduct(ABC):
    """A weight [N, K] as it is stored, and a bias [N] or none."""

    @abstractmethod
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """[M, K] -> [M, N], dtype of x: x @ W.T + bias. M may be 0; rows may be strided."""

    @abstractmethod
    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        """The same, not rounded to the dtype of x."""

    @property
    @abstractmethod
    def rounds_activations(self) -> bool:
        """Whether it rounds each row of x to 8 bits before it multiplies."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of weight and bias as they are stored."""
