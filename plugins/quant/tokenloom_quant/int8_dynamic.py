"""int8 weights times int8 activations: both rounded to nearest, and summed as whole numbers.

Weights have a scale per output channel and group of input features and are rounded while they load; activations have
one per row (token) and group, found at each product. Groups keep the few large activations that models have from
flattening all others of their row.
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
        default=32, description="Input features that share scales: 32, 64 or 128; 0 for all, faster and less exact."
    )
    include_embedding: bool = Field(
        default=False, description="Also quantize the token embedding and the output head, tied or not."
    )

    def build(self, context: QuantContext) -> LowBitQuantizer:
        encode = partial(round_to_codes, bits=8, group_size=self.group_size or None, symmetric=True)
        return LowBitQuantizer(
            LowBitFormat("int8_dynamic", encode, rounds_activations=True),
            context,
            include_embedding=self.include_embedding,
            fingerprint=f"int8_dynamic:group_size={self.group_size}:include_embedding={self.include_embedding}",
        )
