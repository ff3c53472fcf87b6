"""Products with the weights of checkpoints as they are stored, by the kind of device that they run on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from tokenloom_quant.affine_weight import ReadWeight
from tokenloom_quant.low_bit.packed_product import PackedProduct

__all__ = ["PackedProducts"]


class PackedProducts(ABC):
    """Which weights can stay packed on a device, and how they are multiplied there."""

    @abstractmethod
    def why_not(self, weight: ReadWeight) -> str | None:
        """What keeps this weight from being multiplied as it is stored, or None."""

    @abstractmethod
    def build(self, weights: Sequence[ReadWeight], bias: torch.Tensor | None) -> PackedProduct:
        """One product for weights that `why_not` says nothing against.

        Args:
            weights: shards below each other, which agree in form, order and rounding; at least one. `ReadWeight.order`
                is the caller's business, and so is the rounding, unless the product says that it rounds by itself.
            bias: [N] over all shards, on the device, or None.
        """
