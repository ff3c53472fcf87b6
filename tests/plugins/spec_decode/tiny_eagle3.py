"""A tiny random EAGLE-3 head in both published layouts, and what plain PyTorch says with it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

__all__ = ["HEAD_DIM", "TinyEagle3", "rms_norm", "rotated"]

_NUM_HEADS, _NUM_KV_HEADS, HEAD_DIM, _FFN, _EPS, _THETA = 4, 2, 8, 48, 1e-5, 10000.0


class TinyEagle3:
    """A head for a target of H hidden_size and V vocab_size; half of the tokens can be drafted."""

    def __init__(
        self,
        hidden_size: int = 32,
        vocab_size: int = 64,
        aux_ids: Sequence[int] | None = (1, 2, 1),
        *,
        norm_before_residual: bool = False,
        norm_output: bool = False,
        is_reduced: bool = True,
        has_qk_norm: bool = False,
        seed: int = 0,
    ) -> None:
        self.hidden_size, self.vocab_size, self.aux_ids = hidden_size, vocab_size, aux_ids
        self.norm_before_residual, self.norm_output, self.has_qk_norm = norm_before_residual, norm_output, has_qk_norm
        generator = torch.Generator().manual_seed(seed)
        size = hidden_size

        def normal(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

        def norm(count: int) -> torch.Tensor:
            return 0.5 + torch.rand(count, generator=generator)

        self.draft_ids = torch.arange(vocab_size)
        if is_reduced:
            self.draft_ids = torch.randperm(vocab_size, generator=generator)[: vocab_size // 2].sort().values
        self.layer = {
            "input_layernorm.weight": norm(size),
            "hidden_norm.weight": norm(size),
            "post_attention_layernorm.weight": norm(size),
            "self_attn.q_proj.weight": 2 * normal(_NUM_HEADS * HEAD_DIM, 2 * size),
            "self_attn.k_proj.weight": 2 * normal(_NUM_KV_HEADS * HEAD_DIM, 2 * size),
            "self_attn.v_proj.weight": 2 * normal(_NUM_KV_HEADS * HEAD_DIM, 2 * size),
            "self_attn.o_proj.weight": 2 * normal(size, _NUM_HEADS * HEAD_DIM),
            "mlp.gate_proj.weight": normal(_FFN, size),
            "mlp.up_proj.weight": normal(_FFN, size),
            "mlp.down_proj.weight": normal(size, _FFN),
        }
        if has_qk_norm:
            self.layer |= {"self_attn.q_norm.weight": norm(HEAD_DIM), "self_attn.k_norm.weight": norm(HEAD_DIM)}
        self.outer = {
            "fc.weight": normal(size, 3 * size),
            "norm.weight": norm(size),
            "lm_head.weight": 2 * normal(len(self.draft_ids), size),
        }
        self.embedding: torch.Tensor | None = None

    def config(self, layout: str) -> dict[str, Any]:
        """Content of config.json."""
        layer: dict[str, Any] = {
            "model_type": "qwen3" if self.has_qk_norm else "llama",
            "hidden_size": self.hidden_size,
            "intermediate_size": _FFN,
            "num_hidden_layers": 1,
            "num_attention_heads": _NUM_HEADS,
            "num_key_value_heads": _NUM_KV_HEADS,
            "head_dim": HEAD_DIM,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 512,
            "rms_norm_eps": _EPS,
            "rope_theta": _THETA,
            "hidden_act": "silu",
        }
        own: dict[str, Any] = {"draft_vocab_size": len(self.draft_ids)}
        if self.norm_before_residual:
            own["norm_before_residual"] = True
        if self.norm_output:
            own["norm_output"] = True
        aux = {} if self.aux_ids is None else {"eagle_aux_hidden_state_layer_ids": list(self.aux_ids)}
        if layout == "speculators":
            words = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}
            return {**words, **own, **aux, "transformer_layer_config": layer}
        return {"architectures": ["LlamaForCausalLMEagle3"], **layer, **own, **({"eagle_config": aux} if aux else {})}

    def write(self, folder: Path, layout: str = "safeailab") -> Path:
        """Writes the head and returns the folder. Layouts: safeailab (pickled), speculators (safetensors)."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config(layout)))
        prefix = "layers.0" if layout == "speculators" else "midlayer"
        tensors = {**self.outer, **{f"{prefix}.{name}": tensor for name, tensor in self.layer.items()}}
        if len(self.draft_ids) < self.vocab_size:
            tensors["d2t"] = self.draft_ids - torch.arange(len(self.draft_ids))
            tensors["t2d"] = torch.zeros(self.vocab_size, dtype=torch.bool)
            tensors["t2d"][self.draft_ids] = True
        if self.embedding is not None:
            tensors["embed_tokens.weight"] = self.embedding
        if layout == "speculators":
            save_file(tensors, folder / "model.safetensors")
        else:
            torch.save(tensors, folder / "pytorch_model.bin")
        return folder

    def log_probs(
        self, features: torch.Tensor, token_ids: Sequence[int], embedding: torch.Tensor, path: Sequence[int]
    ) -> dict[int, float]:
        """Of each token that can be drafted, behind some drafts; every entry is computed anew.

        Args:
            features: [F, 3 * H], the target's states at positions 0 .. F - 1.
            token_ids: F + 1 tokens.
            embedding: [V, H].
            path: drafts so far.
        """
        table = embedding if self.embedding is None else self.embedding
        states, tokens = list(features @ self.outer["fc.weight"].T), list(token_ids)
        state = self._last_state(torch.stack(states), table[torch.tensor(tokens[1:])])
        for draft in path:
            states.append(state)
            tokens.append(draft)
            state = self._last_state(torch.stack(states), table[torch.tensor(tokens[1:])])
        normed = state if self.norm_output else rms_norm(state, self.outer["norm.weight"])
        scores = (self.outer["lm_head.weight"] @ normed).log_softmax(dim=0)
        return dict(zip(self.draft_ids.tolist(), scores.tolist(), strict=True))

    def _last_state(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """The state at the last of n entries: hidden, embedded [n, H]."""
        w, n = self.layer, len(hidden)
        normed = rms_norm(hidden, w["hidden_norm.weight"])
        joined = torch.cat([rms_norm(embedded, w["input_layernorm.weight"]), normed], dim=1)
        q = (joined[-1] @ w["self_attn.q_proj.weight"].T).view(_NUM_HEADS, HEAD_DIM)
        k = (joined @ w["self_attn.k_proj.weight"].T).view(n, _NUM_KV_HEADS, HEAD_DIM)
        v = (joined @ w["self_attn.v_proj.weight"].T).view(n, _NUM_KV_HEADS, HEAD_DIM)
        if self.has_qk_norm:
            q, k = rms_norm(q, w["self_attn.q_norm.weight"]), rms_norm(k, w["self_attn.k_norm.weight"])
        out = []
        for head in range(_NUM_HEADS):
            group = head // (_NUM_HEADS // _NUM_KV_HEADS)
            keys = torch.stack([rotated(k[i, group], i) for i in range(n)])
            scores = keys @ rotated(q[head], n - 1) / math.sqrt(HEAD_DIM)
            out.append(scores.softmax(dim=0) @ v[:, group])
        residual = normed[-1] if self.norm_before_residual else hidden[-1]
        state = residual + torch.cat(out) @ w["self_attn.o_proj.weight"].T
        inner = rms_norm(state, w["post_attention_layernorm.weight"])
        gate, up = w["mlp.gate_proj.weight"] @ inner, w["mlp.up_proj.weight"] @ inner
        state = state + w["mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
        return rms_norm(state, self.outer["norm.weight"]) if self.norm_output else state


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + _EPS) * weight


def rotated(x: torch.Tensor, position: int) -> torch.Tensor:
    half = HEAD_DIM // 2
    angles = position * _THETA ** (-torch.arange(half) * 2 / HEAD_DIM)
    first, second = x[:half], x[half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()])
