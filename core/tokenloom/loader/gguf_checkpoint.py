"""A GGUF file as a `Checkpoint`: names, row order, norms and dtypes become those of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch

from tokenloom.checkpoint.base import Checkpoint, StoredTensor
from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.errors import ModelError
from tokenloom.loader.gguf_config import find_layout, gguf_config
from tokenloom.loader.gguf_dequant import dequantize
from tokenloom.loader.gguf_names import hf_names
from tokenloom.loader.gguf_parts import GGUFParts
from tokenloom.loader.weights_digest import DigestRecord, quick_digest
from tokenloom.model_config import ModelConfig

__all__ = ["GGUFCheckpoint"]


@final
class GGUFCheckpoint(Checkpoint):
    """Opens a GGUF file, or the first of several parts with all others. Tensor data is read by `load` only.

    Raises ModelError if the file is damaged, of a kind that is not supported, or holds tensors without a place in it.
    """

    def __init__(self, path: Path) -> None:
        self._file = GGUFParts(path)
        self._layout = find_layout(self._file)
        self._gguf_names = hf_names(self._file, self._layout)
        self._config = gguf_config(self._file, self._layout, self._gguf_names)

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def path(self) -> Path:
        return self._file.path

    @cached_property
    def weights_digest(self) -> str:
        headers = self._file.headers()
        record = DigestRecord.read(self.path) if len(headers) == 1 else None
        if record is not None and record.matches(self.path):
            return record.sha256
        return quick_digest(headers)

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        return None

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._gguf_names)

    def file_of(self, name: str) -> Path:
        if name not in self._gguf_names:
            self.refuse_missing(name, self.path)
        return self._file.file_of(self._gguf_names[name])

    def load(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        self.file_of(name)
        dtype = dtype or torch.float32
        info = self._file.tensors[self._gguf_names[name]]
        raw = self._file.raw(info.name)
        if self._layout.norm_offset and name.endswith("norm.weight"):
            # In float32, in which the file holds the sum: only then does adding the offset give that sum again.
            return (dequantize(raw, info.block_type, torch.float32).view(info.shape) - self._layout.norm_offset).to(
                dtype
            )
        values = dequantize(raw, info.block_type, dtype).view(info.shape)
        num_heads = self._rotated_heads(name)
        return values if num_heads is None else self._separate_halves(name, values, num_heads)

    def stored_form(self, name: str) -> tuple[str, tuple[int, ...]]:
        self.file_of(name)
        info = self._file.tensors[self._gguf_names[name]]
        return info.block_type.name, tuple(info.shape)

    @property
    def stored_types(self) -> frozenset[str]:
        return frozenset(info.block_type.name for info in self._file.tensors.values() if info.is_in_blocks)

    def stored_type(self, name: str) -> str | None:
        self.file_of(name)
        info = self._file.tensors[self._gguf_names[name]]
        return info.block_type.name if info.is_in_blocks else None

    def load_stored(self, name: str) -> StoredTensor:
        self.file_of(name)
        info = self._file.tensors[self._gguf_names[name]]
        blocks = self._file.raw(info.name)
        num_heads = self._rotated_heads(name)
        if num_heads is not None:
            blocks = self._separate_halves(name, blocks, num_heads)
        return StoredTensor(info.block_type.name, info.shape, blocks)

    def tokenizer_source(self) -> TokenizerSource:
        template = self._file.metadata.get("tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise ModelError(f"{self.path}: 'tokenizer.chat_template' must be a string, got {type(template).__name__}")
        return TokenizerSource("gguf", self.path, self._file.metadata, template)

    def close(self) -> None:
        self._file.close()

    def _rotated_heads(self, name: str) -> int | None:
        """The number of heads in a tensor whose rows the file interleaves for RoPE; None for all others."""
        if not self._layout.interleaves_rotary_rows:
            return None
        if ".q_proj." in name:
            return self._config.num_heads
        return self._config.num_kv_heads if ".k_proj." in name else None

    def _separate_halves(self, name: str, rows: torch.Tensor, num_heads: int) -> torch.Tensor:
        """Undoes the format's row order within each head: 0, h, 1, h + 1, ... becomes 0, 1, ... h, h + 1, ...

        `rows` is [num_heads * head_dim, in] for a weight, [num_heads * head_dim] for a bias.
        """
        head_dim = self._config.head_dim
        if rows.shape[0] != num_heads * head_dim:
            raise ModelError(
                f"{self.file_of(name)}: tensor {name!r} has {rows.shape[0]} rows; the metadata asks for "
                f"{num_heads * head_dim} ({num_heads} heads of {head_dim})"
            )
        pairs = rows.view(num_heads, head_dim // 2, 2, -1)
        return pairs.transpose(1, 2).reshape(rows.shape)
