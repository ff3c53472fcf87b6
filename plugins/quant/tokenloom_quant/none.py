"""No quantization: the core stores every layer as it is."""

from __future__ import annotations

from typing import final

from tokenloom.interfaces.quant import (
    EmbeddingWeights,
    LayerSpec,
    LinearWeights,
    QuantConfig,
    QuantContext,
    Quantizer,
)

__all__ = ["NoneConfig", "NoneQuantizer"]


@final
class NoneConfig(QuantConfig):
    """`quant=none` has no settings."""

    def build(self, context: QuantContext) -> NoneQuantizer:
        return NoneQuantizer()


@final
class NoneQuantizer(Quantizer):
    """Covers no layer."""

    def covers(self, spec: LayerSpec) -> bool:
        return False

    def create_linear(self, spec: LayerSpec) -> LinearWeights:
        raise AssertionError(f"quant=none covers nothing, but was asked to store {spec.name}")

    def create_embedding(self, spec: LayerSpec) -> EmbeddingWeights:
        raise AssertionError(f"quant=none covers nothing, but was asked to store {spec.name}")

    @property
    def fingerprint(self) -> str:
        return "none"
