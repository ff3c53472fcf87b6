"""A GGUF file as a `Checkpoint`: names, row order and dtypes become those of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch

from tokenloom.errors import ModelError
from tokenloom.loader.checkpoint_base import Checkpoint
from tokenloom.loader.gguf import GGUFFile
from tokenloom.loader.gguf_config import ROPE_DIVISORS, gguf_config
from tokenloom.loader.gguf_dequant import dequantize
from tokenloom.loader.tokenizer_source import TokenizerSource
from tokenloom.loader.weights_digest import DigestRecord, quick_digest
from tokenloom.model_config import ModelConfig

__all__ = ["GGUFCheckpoint"]

_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@final
class GGUFCheckpoint(Checkpoint):
    """Opens a GGUF file of architecture llama. Raises ModelError if the file holds tensors that have no place in it."""

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        self._config = gguf_config(self._file)
        self._gguf_names = _names_by_hf_name(self._file, self._config.num_layers)

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def path(self) -> Path:
        return self._file.path

    @cached_property
    def weights_digest(self) -> str:
        record = DigestRecord.read(self.path)
        if record is not None and record.matches(self.path):
            return record.sha256
        return quick_digest([(self.path, self._file.header())])

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        return None

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._gguf_names)

    def file_of(self, name: str) -> Path:
        if name not in self._gguf_names:
            self.refuse_missing(name, self.path)
        return self.path

    def load(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        self.file_of(name)
        info = self._file.tensors[self._gguf_names[name]]
        values = dequantize(self._file.raw(info.name), info.block_type, dtype or torch.float32).view(info.shape)
        num_heads = self._rotated_heads(name)
        return values if num_heads is None else self._separate_halves(name, values, num_heads)

    def tokenizer_source(self) -> TokenizerSource:
        template = self._file.metadata.get("tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise ModelError(f"{self.path}: 'tokenizer.chat_template' must be a string, got {type(template).__name__}")
        return TokenizerSource("gguf", self.path, self._file.metadata, template)

    def close(self) -> None:
        self._file.close()

    def _rotated_heads(self, name: str) -> int | None:
        """The number of heads in a tensor whose rows the format interleaves for RoPE; None for all others."""
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
                f"{self.path}: tensor {name!r} has {rows.shape[0]} rows; the metadata asks for "
                f"{num_heads * head_dim} ({num_heads} heads of {head_dim})"
            )
        pairs = rows.view(num_heads, head_dim // 2, 2, -1)
        return pairs.transpose(1, 2).reshape(rows.shape)


def _names_by_hf_name(file: GGUFFile, num_layers: int) -> dict[str, str]:
    """{Hugging Face name: GGUF name} of all tensors. A tensor that the model would not use is an error."""
    hf_names = dict(_MODEL_NAMES)
    for layer in range(num_layers):
        for gguf_part, hf_part in _LAYER_NAMES.items():
            for suffix in ("weight", "bias"):
                hf_names[f"blk.{layer}.{gguf_part}.{suffix}"] = f"model.layers.{layer}.{hf_part}.{suffix}"
    unknown = [name for name in file.tensors if name not in hf_names and name != ROPE_DIVISORS]
    if unknown:
        raise ModelError(
            f"{file.path} holds {len(unknown)} tensors that a llama model of {num_layers} layers does not use, "
            f"among them {', '.join(repr(name) for name in unknown[:3])}: it may be another kind of model"
        )
    return {hf_names[name]: name for name in file.tensors if name != ROPE_DIVISORS}
