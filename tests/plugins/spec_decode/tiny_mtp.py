"""A tiny random multi-token-prediction module in both layouts, and what plain PyTorch says with it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.plugins.spec_decode.tiny_eagle3 import HEAD_DIM, rms_norm, rotated

__all__ = ["TinyMtp"]

FFN, NUM_HEADS = 48, 4
NAMES = {
    "deepseek": ("model.layers.2.", "enorm", "hnorm", "eh_proj", "", "shared_head.norm"),
    "qwen": ("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "layers.0.", "norm"),
}


class TinyMtp:
    """A module for a target of H hidden_size, V vocab_size and two layers."""

    def __init__(self, layout: str, hidden_size: int = 32, vocab_size: int = 64, *, own_head: bool = False) -> None:
        self.layout, self.hidden_size, self.vocab_size = layout, hidden_size, vocab_size
        size = hidden_size
        generator = torch.Generator().manual_seed(4)

        def normal(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

        def norm() -> torch.Tensor:
            return 0.5 + torch.rand(size, generator=generator)

        self.embedding_norm, self.hidden_norm, self.fc, self.norm = norm(), norm(), normal(size, 2 * size), norm()
        self.layer = {
            "input_layernorm": norm(),
            "post_attention_layernorm": norm(),
            **{f"self_attn.{name}_proj": 2 * normal(NUM_HEADS * HEAD_DIM, size) for name in "qkv"},
            "self_attn.o_proj": 2 * normal(size, NUM_HEADS * HEAD_DIM),
            "mlp.gate_proj": normal(FFN, size),
            "mlp.up_proj": normal(FFN, size),
            "mlp.down_proj": normal(size, FFN),
        }
        self.head = 2 * normal(vocab_size, size) if own_head else None

    def tensors(self) -> dict[str, torch.Tensor]:
        """By their names in the layout."""
        prefix, enorm, hnorm, fc, layer, norm = NAMES[self.layout]
        named = {enorm: self.embedding_norm, hnorm: self.hidden_norm, fc: self.fc, norm: self.norm}
        named |= {f"{layer}{name}": tensor for name, tensor in self.layer.items()}
        if self.head is not None:
            named["shared_head.head"] = self.head
        return {f"{prefix}{name}.weight": tensor for name, tensor in named.items()}

    def write(self, folder: Path, **tensors: torch.Tensor) -> Path:
        """Writes the module, with other `tensors` beside it, and returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "intermediate_size": FFN,
            "num_hidden_layers": 2,
            "num_nextn_predict_layers": 1,
            "num_attention_heads": NUM_HEADS,
            "head_dim": HEAD_DIM,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
        }
        (folder / "config.json").write_text(json.dumps(config))
        # A folder of the whole model: what is not the module's is left alone.
        others = {"model.layers.0.input_layernorm.weight": torch.ones(self.hidden_size)}
        save_file({**others, **self.tensors(), **tensors}, folder / "model.safetensors")
        return folder

    def log_probs(
        self,
        features: torch.Tensor,
        token_ids: Sequence[int],
        embedding: torch.Tensor,
        target_head: torch.Tensor,
        path: Sequence[int],
    ) -> dict[int, float]:
        """Of each token, behind some drafts; every entry is computed anew.

        Args:
            features: [F, H], the target's final states at positions 0 .. F - 1.
            token_ids: F + 1 tokens.
            embedding, target_head: [V, H].
            path: drafts so far.
        """
        states, tokens = list(features), list(token_ids)
        state = self._last_state(states, embedding[torch.tensor(tokens[1:])])
        for draft in path:
            states.append(state)
            tokens.append(draft)
            state = self._last_state(states, embedding[torch.tensor(tokens[1:])])
        normed = rms_norm(state, self.norm) if self.layout == "deepseek" else state
        scores = (target_head if self.head is None else self.head) @ normed
        return dict(enumerate(scores.log_softmax(dim=0).tolist()))

    def _last_state(self, states: Sequence[torch.Tensor], embedded: torch.Tensor) -> torch.Tensor:
        """The state at the last of n entries: embedded [n, H]."""
        w, count = self.layer, len(states)
        if self.layout == "deepseek":
            embedded = torch.cat([torch.zeros_like(embedded[:1]), embedded[1:]])
        joined = [rms_norm(embedded, self.embedding_norm), rms_norm(torch.stack(list(states)), self.hidden_norm)]
        h = torch.cat(joined, dim=1) @ self.fc.T
        x = rms_norm(h, w["input_layernorm"])
        q, k, v = ((x @ w[f"self_attn.{name}_proj"].T).view(count, NUM_HEADS, HEAD_DIM) for name in "qkv")
        out = []
        for head in range(NUM_HEADS):
            keys = torch.stack([rotated(k[i, head], i) for i in range(count)])
            scores = keys @ rotated(q[-1, head], count - 1) / math.sqrt(HEAD_DIM)
            out.append(scores.softmax(dim=0) @ v[:, head])
        state = h[-1] + w["self_attn.o_proj"] @ torch.cat(out)
        inner = rms_norm(state, w["post_attention_layernorm"])
        gate, up = w["mlp.gate_proj"] @ inner, w["mlp.up_proj"] @ inner
        state = state + w["mlp.down_proj"] @ (gate * torch.sigmoid(gate) * up)
        return state if self.layout == "deepseek" else rms_norm(state, self.norm)
