"""A tiny random Llama as a Hugging Face folder, and its logits: a whole model for suites that need one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import save_file

from tokenloom.interfaces.attention import AttentionBatch, AttentionContext
from tokenloom.models.causal_lm import CausalLM, ForwardContext
from tokenloom.testing.reference_backend import ReferenceBackend

__all__ = ["TinyLlama", "prompt_logits"]

_BLOCK_SIZE = 8


@final
@dataclass(frozen=True, slots=True)
class TinyLlama:
    """Sizes of the model, all of them multiples of `unit`.

    Attributes:
        num_layers: twelve tell layer 1 from layers 10 and 11.
        unit: what the sizes of a format's matrices must be a multiple of; even.
        tied: whether the embedding is the output head as well.
    """

    num_layers: int = 12
    unit: int = 16
    tied: bool = True

    def config_json(self) -> dict[str, Any]:
        """config.json without quantization settings."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 2 * self.unit,
            "intermediate_size": 3 * self.unit,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": self.unit,
            "vocab_size": 4 * self.unit,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "torch_dtype": "float32",
        }

    def weights(self, seed: int = 0) -> dict[str, torch.Tensor]:
        """Random fp32 tensors under their names in the checkpoint."""
        generator = torch.Generator().manual_seed(seed)
        hidden, ffn, kv_size = 2 * self.unit, 3 * self.unit, self.unit

        def matrix(rows: int, columns: int) -> torch.Tensor:
            values: torch.Tensor = torch.randn(rows, columns, generator=generator)
            return values / math.sqrt(columns)

        tensors = {"model.embed_tokens.weight": matrix(4 * self.unit, hidden) * 3.0}
        for layer in range(self.num_layers):
            name = f"model.layers.{layer}."
            for norm in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"{name}{norm}.weight"] = 0.75 + 0.5 * torch.rand(hidden, generator=generator)
            for part, rows, columns in (
                ("self_attn.q_proj", hidden, hidden),
                ("self_attn.k_proj", kv_size, hidden),
                ("self_attn.v_proj", kv_size, hidden),
                ("self_attn.o_proj", hidden, hidden),
                ("mlp.gate_proj", ffn, hidden),
                ("mlp.up_proj", ffn, hidden),
                ("mlp.down_proj", hidden, ffn),
            ):
                tensors[f"{name}{part}.weight"] = matrix(rows, columns)
        tensors["model.norm.weight"] = torch.ones(hidden)
        if not self.tied:
            tensors["lm_head.weight"] = matrix(4 * self.unit, hidden) * 3.0
        return tensors

    def write(self, folder: Path, tensors: Mapping[str, torch.Tensor], quantization: Mapping[str, Any]) -> Path:
        """Writes config.json and model.safetensors; `quantization` becomes `quantization_config` unless empty."""
        folder.mkdir(parents=True)
        config = self.config_json()
        if quantization:
            config["quantization_config"] = dict(quantization)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
        return folder


def prompt_logits(model: CausalLM, token_ids: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """fp32 [n, V]: the logits at every position of one prompt, by reference attention."""
    config, num_tokens = model.config, len(token_ids)
    attention = ReferenceBackend(
        AttentionContext(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=_BLOCK_SIZE,
            dtype=dtype,
            device=device,
            max_num_seqs=1,
            max_num_batched_tokens=num_tokens,
            max_model_len=config.max_position_embeddings,
        )
    )
    num_blocks = -(-num_tokens // _BLOCK_SIZE)
    spec = attention.kv_cache_spec(num_blocks)
    positions = torch.arange(num_tokens, device=device)
    batch = AttentionBatch(
        cu_seqlens_q=torch.tensor([0, num_tokens], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([num_tokens], dtype=torch.int32, device=device),
        positions=positions,
        block_table=torch.arange(num_blocks, dtype=torch.int32, device=device)[None],
        slot_mapping=positions,
        tree_mask=None,
        query_lens_cpu=[num_tokens],
        seq_lens_cpu=[num_tokens],
    )
    context = ForwardContext(
        positions=positions,
        attention=attention,
        metadata=(attention.prepare(batch),),
        kv=[
            [torch.zeros(shape, dtype=kind, device=device) for shape, kind in zip(spec.shapes, spec.dtypes)]
            for _ in model.attention_layers()
        ],
    )
    output = model.forward(torch.tensor(list(token_ids), device=device), context)
    return model.compute_logits(output.hidden)
