"""A tiny random EAGLE head in the published layout, and what plain PyTorch says with it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.plugins.spec_decode.tiny_eagle3 import HEAD_DIM, rms_norm, rotated

__all__ = ["TinyEagle"]

_NUM_HEADS, _FFN = 4, 48


class TinyEagle:
    """A head for a target of H hidden_size and V vocab_size, without grouped heads."""

    def __init__(self, hidden_size: int = 32, vocab_size: int = 64, *, has_bias: bool = True, seed: int = 0) -> None:
        self.hidden_size, self.vocab_size, self.has_bias = hidden_size, vocab_size, has_bias
        generator = torch.Generator().manual_seed(seed)
        size = hidden_size

        def normal(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

        self.tensors = {
            "embed_tokens.weight": torch.randn(vocab_size, size, generator=generator),
            "fc.weight": normal(size, 2 * size),
            "layers.0.self_attn.q_proj.weight": 2 * normal(_NUM_HEADS * HEAD_DIM, size),
            "layers.0.self_attn.k_proj.weight": 2 * normal(_NUM_HEADS * HEAD_DIM, size),
            "layers.0.self_attn.v_proj.weight": 2 * normal(_NUM_HEADS * HEAD_DIM, size),
            "layers.0.self_attn.o_proj.weight": 2 * normal(size, _NUM_HEADS * HEAD_DIM),
            "layers.0.post_attention_layernorm.weight": 0.5 + torch.rand(size, generator=generator),
            "layers.0.mlp.gate_proj.weight": normal(_FFN, size),
            "layers.0.mlp.up_proj.weight": normal(_FFN, size),
            "layers.0.mlp.down_proj.weight": normal(size, _FFN),
        }
        if has_bias:
            self.tensors["fc.bias"] = torch.randn(size, generator=generator)

    def config(self) -> dict[str, Any]:
        """Content of config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "intermediate_size": _FFN,
            "num_hidden_layers": 1,
            "num_attention_heads": _NUM_HEADS,
            "head_dim": HEAD_DIM,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            **({} if self.has_bias else {"bias": False}),
        }

    def write(self, folder: Path) -> Path:
        """Writes the head and returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config()))
        torch.save(self.tensors, folder / "pytorch_model.bin")
        return folder

    def log_probs(
        self, features: torch.Tensor, token_ids: Sequence[int], target_head: torch.Tensor, path: Sequence[int]
    ) -> dict[int, float]:
        """Of each token, behind some drafts; every entry is computed anew.

        Args:
            features: [F, H], the target's final states at positions 0 .. F - 1.
            token_ids: F + 1 tokens.
            target_head: [V, H].
            path: drafts so far.
        """
        states, tokens = list(features), list(token_ids)
        state = self._last_state(states, tokens)
        for draft in path:
            states.append(state)
            tokens.append(draft)
            state = self._last_state(states, tokens)
        return dict(enumerate((target_head @ state).log_softmax(dim=0).tolist()))

    def _last_state(self, states: Sequence[torch.Tensor], tokens: Sequence[int]) -> torch.Tensor:
        """The state at the last of n entries, given n states and n + 1 tokens."""
        w, count = self.tensors, len(states)
        embedded = w["embed_tokens.weight"][torch.tensor(tokens[1:])]
        x = torch.cat([embedded, torch.stack(list(states))], dim=1) @ w["fc.weight"].T
        if self.has_bias:
            x = x + w["fc.bias"]
        q, k, v = (
            (x @ w[f"layers.0.self_attn.{name}_proj.weight"].T).view(count, _NUM_HEADS, HEAD_DIM) for name in "qkv"
        )
        out = []
        for head in range(_NUM_HEADS):
            keys = torch.stack([rotated(k[i, head], i) for i in range(count)])
            scores = keys @ rotated(q[-1, head], count - 1) / math.sqrt(HEAD_DIM)
            out.append(scores.softmax(dim=0) @ v[:, head])
        state = x[-1] + torch.cat(out) @ w["layers.0.self_attn.o_proj.weight"].T
        inner = rms_norm(state, w["layers.0.post_attention_layernorm.weight"])
        gate, up = w["layers.0.mlp.gate_proj.weight"] @ inner, w["layers.0.mlp.up_proj.weight"] @ inner
        return state + w["layers.0.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
