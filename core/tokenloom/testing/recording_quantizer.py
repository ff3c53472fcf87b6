"""A quantizer around another one that writes down which layers it is asked about and which it stores."""

from __future__ import annotations

from typing import final

from tokenloom.interfaces.quant import EmbeddingWeights, LayerSpec, LinearWeights, Quantizer

__all__ = ["RecordingQuantizer"]


@final
class RecordingQuantizer(Quantizer):
    """Answers as `inner` does; without one it covers nothing, so that every layer is dense.

    Attributes:
        asked: layers that `covers` was asked about: those that no skip list names.
        linears, embeddings: what was created, by full dotted name.
    """

    def __init__(self, inner: Quantizer | None = None) -> None:
        self._inner = inner
        self.asked: dict[str, LayerSpec] = {}
        self.linears: dict[str, LinearWeights] = {}
        self.embeddings: dict[str, EmbeddingWeights] = {}

    def covers(self, spec: LayerSpec) -> bool:
        self.asked[spec.name] = spec
        return self._inner is not None and self._inner.covers(spec)

    def create_linear(self, spec: LayerSpec) -> LinearWeights:
        assert self._inner is not None, f"nothing is covered, but {spec.name} was to be stored"
        self.linears[spec.name] = self._inner.create_linear(spec)
        return self.linears[spec.name]

    def create_embedding(self, spec: LayerSpec) -> EmbeddingWeights:
        assert self._inner is not None, f"nothing is covered, but {spec.name} was to be stored"
        self.embeddings[spec.name] = self._inner.create_embedding(spec)
        return self.embeddings[spec.name]

    @property
    def stored_types(self) -> frozenset[str]:
        return frozenset() if self._inner is None else self._inner.stored_types

    @property
    def fingerprint(self) -> str:
        return "dense" if self._inner is None else self._inner.fingerprint
