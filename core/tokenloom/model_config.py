"""What a decoder model looks like, whatever file it came from: sizes, rotary embedding, windows, special tokens.

A loader fills it from GGUF metadata or config.json; models, KV planning and capability checks only read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenloom.errors import ModelError
from tokenloom.rope_config import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)

__all__ = [
    "SUPPORTED_ACTIVATIONS",
    "SUPPORTED_DTYPES",
    "DivisorScaling",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "ModelConfig",
    "RopeConfig",
    "RopeScaling",
    "YarnScaling",
]

SUPPORTED_ACTIVATIONS: tuple[str, ...] = ("silu", "gelu_tanh")
SUPPORTED_DTYPES: tuple[str, ...] = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One decoder-only model. Whoever reads it from a file calls `validated` before passing it on.

    What a family does not have keeps its default, so a reader states only what its files say.

    Attributes:
        architecture: name of the `Architecture` that runs it, e.g. "llama".
        head_dim: the true size of one head; need not be hidden_size / num_heads.
        ropes: rotary embedding of each layer; None where a layer has none (NoPE).
        windows: attention window of each layer (position i sees j with i - W < j <= i), None for full attention.
        softmax_scale: multiplies q.k; None is 1 / sqrt(head_dim).
        attn_soft_cap: attention scores become cap * tanh(score / cap); None leaves them.
        final_soft_cap: the same for the logits.
        qkv_bias, output_bias, mlp_bias: which projections add a bias.
        has_qk_norm: queries and keys are RMS-normed per head before the rotary embedding.
        has_post_norms: each part's output is normed again before it joins the residual stream.
        norm_offset: norms multiply by (offset + weight); 1 for Gemma.
        embedding_scale: the embedding's output is multiplied by this.
        is_qkv_fused, is_gate_up_fused: the checkpoint stores q, k and v (gate and up) as one tensor, in this order.
        eos_token_ids: every id that ends a sequence by default, without duplicates.
        dtype: the dtype the checkpoint was made in, e.g. "bfloat16"; what `model.dtype=auto` starts from.
        extra: what only this architecture's own code reads; immutable values.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    ropes: tuple[RopeConfig | None, ...]
    windows: tuple[int | None, ...]
    dtype: str
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    has_qk_norm: bool = False
    has_post_norms: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    softmax_scale: float | None = None
    attn_soft_cap: float | None = None
    final_soft_cap: float | None = None
    is_qkv_fused: bool = False
    is_gate_up_fused: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    extra: Mapping[str, object] = field(default_factory=dict)

    def validated(self, origin: str) -> ModelConfig:
        """Returns itself, or raises a ModelError that starts with `origin` and lists every contradiction."""
        problems = [*self._size_problems(), *self._rope_problems(), *self._choice_problems()]
        if problems:
            raise ModelError(f"{origin}: {'; '.join(problems)}")
        return self

    def rope_key(self, max_model_len: int) -> str:
        """Names what the longest sequence decides about keys: equal for engines whose cached keys fit each other."""
        distinct = dict.fromkeys(rope for rope in self.ropes if rope is not None)
        return repr([rope.for_length(max_model_len) for rope in distinct])

    def _size_problems(self) -> list[str]:
        sizes = {
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
        }
        problems = [f"{name} must be at least 1, got {value}" for name, value in sizes.items() if value < 1]
        if self.num_kv_heads > 0 and self.num_heads % self.num_kv_heads != 0:
            problems.append(
                f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} heads and "
                f"{self.num_kv_heads} KV heads"
            )
        if not 0.0 < self.rms_norm_eps < 1.0:
            problems.append(f"rms_norm_eps must lie between 0 and 1, got {self.rms_norm_eps}")
        return problems

    def _rope_problems(self) -> list[str]:
        ropes = dict.fromkeys(rope for rope in self.ropes if rope is not None)
        return [problem for rope in ropes for problem in rope.problems(self.head_dim)]

    def _choice_problems(self) -> list[str]:
        problems: list[str] = []
        if self.hidden_act not in SUPPORTED_ACTIVATIONS:
            problems.append(f"hidden_act must be one of {', '.join(SUPPORTED_ACTIVATIONS)}, got {self.hidden_act!r}")
        if self.dtype not in SUPPORTED_DTYPES:
            problems.append(f"dtype must be one of {', '.join(SUPPORTED_DTYPES)}, got {self.dtype!r}")
        for name, entries in (("windows", self.windows), ("ropes", self.ropes)):
            if len(entries) != self.num_layers:
                problems.append(f"{name} needs one entry per layer ({self.num_layers}), got {len(entries)}")
        numbers = {
            "embedding_scale": self.embedding_scale,
            "softmax_scale": self.softmax_scale,
            "attn_soft_cap": self.attn_soft_cap,
            "final_soft_cap": self.final_soft_cap,
        }
        problems += [
            f"{name} must be a positive number, got {value}"
            for name, value in numbers.items()
            if value is not None and not (math.isfinite(value) and value > 0.0)
        ]
        problems += [
            f"an attention window must be at least 1, got {w}" for w in self.windows if w is not None and w < 1
        ]
        return problems
