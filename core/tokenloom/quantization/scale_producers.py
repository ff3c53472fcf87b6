"""What stands before each linear layer of a decoder layer and can take over a division of its input, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from tokenloom.model_config import ModelConfig
from tokenloom.quantization.method import InputScale
from tokenloom.quantization.rounded_weight import RoundedWeight

__all__ = ["Place", "ProducerRows", "norm_name", "norm_scale", "producer_rows", "settled_norm"]

Place = Literal["qkv", "output", "gate_up", "down"]
"""Which of the four linear layers."""


def norm_name(config: ModelConfig, index: int, place: Place) -> str | None:
    """Full name of the norm whose result is the layer's whole input and nothing else's; None where there is none."""
    prefix = f"model.layers.{index}"
    if place == "qkv":
        return f"{prefix}.input_layernorm"
    if place == "gate_up":
        return f"{prefix}.{'pre_feedforward' if config.has_post_norms else 'post_attention'}_layernorm"
    return None


def norm_scale(weight: torch.Tensor, offset: float, dtype: torch.dtype) -> InputScale:
    """The scale of a layer behind a norm.

    Args:
        weight: [K], as the checkpoint has it.
        offset: the norm multiplies by (offset + weight).
        dtype: that the norm's weight is stored in.
    """
    size = weight.numel()

    def settle(wanted: torch.Tensor) -> torch.Tensor:
        return settled_norm(weight, offset, dtype, wanted)[1]

    return InputScale(torch.arange(size), size, settle)


def settled_norm(
    weight: torch.Tensor, offset: float, dtype: torch.dtype, wanted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divides a norm by a scale.

    Returns:
        (its new weight as it is stored, fp32 [K]; the scale that it was divided by after all, fp32 [K]). What rounding
        to `dtype` does to the norm is in the scale, so that norm and scaled weight together say what they said before.
    """
    whole = weight.float() + offset
    stored = (whole / wanted - offset).to(dtype).float()
    divided = stored + offset
    is_lost = (divided == 0) | ~divided.isfinite() | (whole == 0)  # no finite scale gives the norm back
    stored = torch.where(is_lost, weight.float(), stored)
    return stored, torch.where(is_lost, 1.0, whole / torch.where(is_lost, 1.0, divided))


@dataclass(frozen=True, slots=True)
class ProducerRows:
    """Rows of a linear layer that make the input of another one, element by element.

    Attributes:
        place: the layer that has the rows.
        start: its first such row.
        columns: int64 [K]: the row, from `start` on, that makes each input feature of the layer behind.
        num_rows: how many rows they are.
    """

    place: Place
    start: int
    columns: torch.Tensor
    num_rows: int

    def scale(self, weight: RoundedWeight) -> InputScale:
        """The scale of the layer behind, where `weight` is that of the layer that has the rows."""
        return InputScale(self.columns, self.num_rows, partial(weight.divisors, self.start))


def producer_rows(config: ModelConfig, place: Place) -> ProducerRows | None:
    """Of the output projection the values, of down the up projection; None for the others."""
    if place == "down":
        size = config.intermediate_size
        return ProducerRows("gate_up", size, torch.arange(size), size)
    if place != "output":
        return None
    num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    heads = torch.arange(num_heads) // (num_heads // num_kv_heads)  # the value head that each query head reads
    producers = (heads.unsqueeze(1) * head_dim + torch.arange(head_dim)).flatten()
    return ProducerRows("qkv", (num_heads + num_kv_heads) * head_dim, producers, num_kv_heads * head_dim)
