"""int8 weights times int8 activations: both rounded to nearest, and summed as whole numbers.

Weights are rounded while they load and have a scale per output channel, those of embedding and head one per group of
input features as well; activations have one per row (token) and group, found at each product. Groups keep the few large
activations that models have from flattening all others of their row.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, final

from pydantic import Field

from tokenloom.interfaces.quant import QuantConfig, QuantContext
from tokenloom_quant.low_bit.affine_codes import round_to_codes
from tokenloom_quant.low_bit.layers import LowBitFormat
from tokenloom_quant.low_bit.quantizer import LowBitQuantizer

__all__ = ["Int8DynamicConfig"]


@final
class Int8DynamicConfig(QuantConfig):
    """Settings of `quant=int8_dynamic`."""

    group_size: Literal[0, 32, 64, 128] = Field(
        default=32,
        description="Input features that share a scale of activations: 32, 64 or 128; 0 for all, faster, less exact.",
    )
    group_weights: bool = Field(
        default=False,
        description="Whether weights of decoder layers have a scale per group too, not only one per output channel: "
        "a little more exact and slower. Those of embedding and head always have.",
    )
    include_embedding: bool = Field(
        default=False, description="Also quantize the token embedding and the output head, tied or not."
    )

    def build(self, context: QuantContext) -> LowBitQuantizer:
        group_size = self.group_size or None
        by_channel, by_group = (
            LowBitFormat(
                "int8_dynamic",
                partial(round_to_codes, bits=8, group_size=size, symmetric=True),
                rounds_activations=True,
                activation_group=group_size,
            )
            for size in (None, group_size)
        )
        return LowBitQuantizer(
            by_group if self.group_weights else by_channel,
            context,
            include_embedding=self.include_embedding,
            fingerprint=f"int8_dynamic:group_size={self.group_size}:group_weights={self.group_weights}"
            f":include_embedding={self.include_embedding}",
            head_format=by_group,
        )
