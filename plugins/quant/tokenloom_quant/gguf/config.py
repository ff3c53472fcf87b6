"""`quant=gguf`: linear layers, embedding and head of a GGUF file stay in its blocks where their products are exact.

Blocks of other types are decoded into the model's dtype, as without the plugin.
"""

from __future__ import annotations

from typing import Literal, final

from pydantic import Field

from tokenloom.errors import ConfigError
from tokenloom.interfaces.quant import LayerSpec, QuantConfig, QuantContext, Quantizer
from tokenloom.ops.weight_memory import WeightMemory
from tokenloom_quant.gguf.block_codes import BLOCK_CODES
from tokenloom_quant.gguf.layers import GGUFEmbedding, GGUFLinear, GGUFStorage
from tokenloom_quant.low_bit.kernels import load_kernels

__all__ = ["GGUFConfig", "GGUFQuantizer"]


@final
class GGUFConfig(QuantConfig):
    """Settings of `quant=gguf`."""

    activations: Literal["full", "int8"] = Field(
        default="full", description="full, as they are; or int8, rounded per row and group: faster with many rows."
    )

    def build(self, context: QuantContext) -> GGUFQuantizer:
        return GGUFQuantizer(self, context)


@final
class GGUFQuantizer(Quantizer):
    """Covers every layer: what the file holds decides how each is stored.

    Raises:
        ConfigError: the checkpoint has no blocks that could be kept.
        NativeBuildError: the products cannot be built on this machine.
    """

    def __init__(self, config: GGUFConfig, context: QuantContext) -> None:
        if not context.stored_types & self.stored_types:
            found = ", ".join(sorted(context.stored_types)) or "none"
            raise ConfigError(
                f"quant=gguf keeps the blocks of GGUF files of the types {', '.join(BLOCK_CODES)}, and this model has "
                f"{found}; try quant=none, quant=int8_dynamic or quant=int4"
            )
        load_kernels()  # before any weight is read
        self._activations = config.activations
        rounds_activations = config.activations == "int8"
        self._storage = GGUFStorage(context.dtype, context.deterministic, rounds_activations, WeightMemory())

    def covers(self, spec: LayerSpec) -> bool:
        return spec.kind in ("linear", "embedding")

    def create_linear(self, spec: LayerSpec) -> GGUFLinear:
        return GGUFLinear(spec, self._storage)

    def create_embedding(self, spec: LayerSpec) -> GGUFEmbedding:
        return GGUFEmbedding(spec, self._storage)

    @property
    def stored_types(self) -> frozenset[str]:
        return frozenset(BLOCK_CODES)

    @property
    def fingerprint(self) -> str:
        return f"gguf:activations={self._activations}"
