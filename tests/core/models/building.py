"""Builds models without quantization, for tests of the models themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import torch

from tokenloom.interfaces.quant import EmbeddingWeights, LayerSpec, LinearWeights, Quantizer
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.models.build import build_model
from tokenloom.models.decoder import Decoder
from tokenloom.parallel import ParallelContext

__all__ = ["NoQuantizer", "build"]


@final
class NoQuantizer(Quantizer):
    """Leaves every layer dense."""

    def covers(self, spec: LayerSpec) -> bool:
        return False

    def create_linear(self, spec: LayerSpec) -> LinearWeights:
        raise AssertionError(spec.name)

    def create_embedding(self, spec: LayerSpec) -> EmbeddingWeights:
        raise AssertionError(spec.name)

    @property
    def fingerprint(self) -> str:
        return "none"


def build(
    folder: Path, dtype: torch.dtype = torch.float32, *, quantizer: Quantizer | None = None, **options: Any
) -> Decoder:
    """The model of a folder, loaded; without a quantizer every layer is dense."""
    checkpoint = open_checkpoint(folder)
    model = build_model(
        checkpoint,
        quantizer=quantizer or NoQuantizer(),
        dtype=dtype,
        device=torch.device("cpu"),
        parallel=ParallelContext(),
        **options,
    )
    checkpoint.close()
    assert isinstance(model, Decoder)
    return model
