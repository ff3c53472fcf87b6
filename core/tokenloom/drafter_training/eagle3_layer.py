"""The decoder layer of an EAGLE-3 head, with the attention that training needs: over first and own later entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import nn
from torch.nn import functional

from tokenloom.model_config import ModelConfig

__all__ = ["Entries", "HeadLayer", "KeysAndValues"]

KeysAndValues = tuple[torch.Tensor, torch.Tensor]
"""[entries, Hkv, D] each."""


@final
@dataclass(frozen=True, slots=True)
class Entries:
    """Which entries one step makes, of conversations that lie behind one another: T tokens, R places.

    Attributes:
        lengths: tokens of each conversation.
        starts: per conversation where its places begin, counted from its own beginning; they end with its last token
            but two.
        rows: int64 [R], the places counted over all conversations.
        step: 0 makes an entry for every token, E = T; later steps make one for each place, E = R.
    """

    lengths: Sequence[int]
    starts: Sequence[int]
    rows: torch.Tensor
    step: int

    def behind(self, step: int) -> Entries:
        """Those of a later step."""
        return replace(self, step=step)

    @property
    def places(self) -> list[torch.Tensor]:
        """Per conversation its places, int64, counted from its own beginning."""
        return [
            torch.arange(start, length - 2, device=self.rows.device)
            for start, length in zip(self.starts, self.lengths, strict=True)
        ]

    @property
    def positions(self) -> torch.Tensor:
        """int64 [E], for the rotary embedding."""
        if self.step == 0:
            return torch.cat([torch.arange(length, device=self.rows.device) for length in self.lengths])
        return torch.cat(self.places) + self.step

    def at_places(self, values: torch.Tensor) -> torch.Tensor:
        """[E, ...] -> [R, ...]."""
        return values[self.rows] if self.step == 0 else values


@final
class HeadLayer(nn.Module):
    """x = h + attention([norm(embedding), norm(h)]), x + mlp(norm(x)); sizes are those of the target's layers."""

    def __init__(self, target: ModelConfig) -> None:
        super().__init__()
        size, eps = target.hidden_size, target.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(size, eps=eps)
        self.hidden_norm = nn.RMSNorm(size, eps=eps)
        self.self_attn = _Attention(target)
        self.post_attention_layernorm = nn.RMSNorm(size, eps=eps)
        self.mlp = _FeedForward(size, target.intermediate_size)
        self._target = target

    def forward(
        self, states: torch.Tensor, embedded: torch.Tensor, entries: Entries, memory: Sequence[KeysAndValues]
    ) -> tuple[torch.Tensor, KeysAndValues]:
        """One step.

        Args:
            states: [E, H] for E entries.
            embedded: [E, H], the token of each.
            entries: which they are.
            memory: keys and values of the steps before.

        Returns:
            The states at the places, [R, H], and the keys and values of all entries.
        """
        joined = torch.cat([self.input_layernorm(embedded), self.hidden_norm(states)], dim=-1)  # [E, 2H]
        attended, own = self.self_attn(joined, entries, memory)
        states = entries.at_places(states) + attended
        return states + self.mlp(self.post_attention_layernorm(states)), own

    @torch.no_grad()
    def begin_as(self, layer: Mapping[str, torch.Tensor]) -> None:
        """Takes the weights of a layer of the target, which does not look at the embedding; that is left to learn."""
        size = self._target.hidden_size
        self.hidden_norm.weight.copy_(layer["input_layernorm"])
        self.post_attention_layernorm.weight.copy_(layer["post_attention_layernorm"])
        for name in ("q_proj", "k_proj", "v_proj"):
            weight = self.self_attn.get_submodule(name).get_parameter("weight")
            weight.mul_(0.3)
            weight[:, size:].copy_(layer[f"self_attn.{name}"])
        self.self_attn.o_proj.weight.copy_(layer["self_attn.o_proj"])
        for name in ("gate_proj", "up_proj", "down_proj"):
            self.mlp.get_submodule(name).get_parameter("weight").copy_(layer[f"mlp.{name}"])

    def config_json(self) -> dict[str, Any]:
        """`transformer_layer_config`."""
        target = self._target
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": target.hidden_size,
            "intermediate_size": target.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": target.num_heads,
            "num_key_value_heads": target.num_kv_heads,
            "head_dim": target.head_dim,
            "vocab_size": target.vocab_size,
            "max_position_embeddings": target.max_position_embeddings,
            "rms_norm_eps": target.rms_norm_eps,
            "rope_theta": _theta(target),
            "hidden_act": "silu",
            "tie_word_embeddings": False,
        }


@final
class _Attention(nn.Module):
    def __init__(self, target: ModelConfig) -> None:
        super().__init__()
        size, dim = target.hidden_size, target.head_dim
        self._num_heads, self._num_kv_heads, self._dim = target.num_heads, target.num_kv_heads, dim
        self.q_proj = nn.Linear(2 * size, target.num_heads * dim, bias=False)
        self.k_proj = nn.Linear(2 * size, target.num_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(2 * size, target.num_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(target.num_heads * dim, size, bias=False)
        self._theta = _theta(target)

    def forward(
        self, joined: torch.Tensor, entries: Entries, memory: Sequence[KeysAndValues]
    ) -> tuple[torch.Tensor, KeysAndValues]:
        """[E, 2H] -> [R, H], and the keys and values of all entries."""
        exponents = torch.arange(0, self._dim, 2, device=joined.device).float() / self._dim
        angles = torch.outer(entries.positions.float(), self._theta**-exponents).repeat(1, 2).unsqueeze(1)  # [E, 1, D]
        asking = self.q_proj(entries.at_places(joined)).float().unflatten(-1, (self._num_heads, self._dim))
        queries = _rotated(asking, entries.at_places(angles))
        keys = _rotated(self.k_proj(joined).float().unflatten(-1, (self._num_kv_heads, self._dim)), angles)
        values = self.v_proj(joined).float().unflatten(-1, (self._num_kv_heads, self._dim))
        own = (keys, values)
        later = [*memory[1:], own] if memory else []
        attended, begin, begin_first = [], 0, 0
        for places, length in zip(entries.places, entries.lengths, strict=True):
            rows = slice(begin, begin + len(places))
            first = tuple(tensor[begin_first : begin_first + length] for tensor in (memory[0] if memory else own))
            attended.append(self._attend(queries[rows], places, first, [(k[rows], v[rows]) for k, v in later]))
            begin, begin_first = rows.stop, begin_first + length
        return self.o_proj(torch.cat(attended).flatten(1)), own

    def _attend(
        self, queries: torch.Tensor, places: torch.Tensor, first: Sequence[torch.Tensor], later: list[KeysAndValues]
    ) -> torch.Tensor:
        """One conversation.

        Args:
            queries: [R, Hq, D], here of its own places only.
            places: int64 [R], the last of the first entries that each sees.
            first: keys and values of the first entries, [T, Hkv, D].
            later: those of each later step, place by place, [R, Hkv, D].

        Returns:
            [R, Hq, D].
        """
        group = self._num_heads // self._num_kv_heads
        grouped = queries.view(len(queries), self._num_kv_heads, group, self._dim)  # [R, Hkv, G, D]
        scores = torch.einsum("rhgd,thd->rhgt", grouped, first[0])
        is_hidden = torch.arange(len(first[0]), device=places.device) > places.unsqueeze(1)  # [R, T]
        scores = scores.masked_fill(is_hidden[:, None, None], float("-inf"))
        own = [torch.einsum("rhgd,rhd->rhg", grouped, keys).unsqueeze(-1) for keys, _ in later]
        weights = (torch.cat([scores, *own], dim=-1) * self._dim**-0.5).softmax(dim=-1)  # [R, Hkv, G, T + steps]
        result = torch.einsum("rhgt,thd->rhgd", weights[..., : len(first[0])], first[1])
        for step, (_, values) in enumerate(later):
            result = result + weights[..., len(first[0]) + step, None] * values.unsqueeze(2)
        return result.flatten(1, 2)


@final
class _FeedForward(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


def _rotated(heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, halves paired: heads [E, n, D], angles [E, 1, D]."""
    lower, upper = heads.chunk(2, dim=-1)
    return heads * angles.cos() + torch.cat([-upper, lower], dim=-1) * angles.sin()


def _theta(target: ModelConfig) -> float:
    """The rotary base of the target's layers; Llama's where the last one has none."""
    rope = target.ropes[-1]
    return 10000.0 if rope is None else rope.theta
