"""Weight-only int4: groups of input features share a scale, and a minimum unless `symmetric`; rounded at load.

Activations are multiplied as they are, or rounded to int8 with a scale for each row and group.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, final

from pydantic import Field

from tokenloom.interfaces.quant import QuantConfig, QuantContext
from tokenloom_quant.low_bit.affine_codes import round_to_codes
from tokenloom_quant.low_bit.layers import LowBitFormat
from tokenloom_quant.low_bit.quantizer import LowBitQuantizer

__all__ = ["Int4Config"]


@final
class Int4Config(QuantConfig):
    """Settings of `quant=int4`."""

    group_size: Literal[32, 64, 128] = Field(
        default=32,
        description="Input features that share a scale: 32, 64 or 128; more take less memory, and are less exact.",
    )
    symmetric: bool = Field(
        default=False, description="Scales only, 15 levels around zero; else a minimum as well, and 16 levels."
    )
    activations: Literal["full", "int8"] = Field(
        default="full", description="full, as they are; or int8, rounded per row and group: faster with many rows."
    )
    include_embedding: bool = Field(
        default=False,
        description="Also quantize the token embedding and the output head, tied or not: to 8 bits, as 4 would cost "
        "logits more than all other layers together.",
    )

    def build(self, context: QuantContext) -> LowBitQuantizer:
        encode = partial(round_to_codes, bits=4, group_size=self.group_size, symmetric=self.symmetric)
        encode_head = partial(round_to_codes, bits=8, group_size=self.group_size, symmetric=True)
        rounds_activations = self.activations == "int8"
        settings = (
            f"group_size={self.group_size}:symmetric={self.symmetric}:activations={self.activations}:"
            f"include_embedding={self.include_embedding}"
        )
        return LowBitQuantizer(
            LowBitFormat("int4", encode, rounds_activations=rounds_activations),
            context,
            include_embedding=self.include_embedding,
            fingerprint=f"int4:{settings}",
            head_format=LowBitFormat("int4", encode_head, rounds_activations=rounds_activations),
        )
