"""A checkpoint without its embeddings: what one decoder layer is built from, without reading what all layers share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.model_config import ModelConfig

__all__ = ["LayerCheckpoint"]

_VOCABULARY = frozenset({"model.embed_tokens.weight", "lm_head.weight"})


@final
class LayerCheckpoint(Checkpoint):
    """`base` with shapes in place of the tables that have a row for each token."""

    def __init__(self, base: Checkpoint) -> None:
        self._base = base

    @property
    def config(self) -> ModelConfig:
        return self._base.config

    @property
    def path(self) -> Path:
        return self._base.path

    @property
    def weights_digest(self) -> str:
        return self._base.weights_digest

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        return self._base.quantization

    def tensor_names(self) -> tuple[str, ...]:
        return self._base.tensor_names()

    def file_of(self, name: str) -> Path:
        return self._base.file_of(name)

    def load(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        if name in _VOCABULARY:
            return torch.empty(self.config.vocab_size, self.config.hidden_size, dtype=dtype, device="meta")
        return self._base.load(name, dtype)

    def stored_form(self, name: str) -> tuple[str, tuple[int, ...]]:
        return self._base.stored_form(name)

    def tokenizer_source(self) -> TokenizerSource:
        return self._base.tokenizer_source()

    def close(self) -> None:
        self._base.close()
