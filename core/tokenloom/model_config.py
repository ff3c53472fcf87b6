"""What a decoder model looks like, whatever file it came from: sizes, rotary embedding, windows, special tokens.

A loader fills it from GGUF metadata or config.json; models, KV planning and capability checks only read it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tokenloom.errors import ModelError

__all__ = [
    "SUPPORTED_ACTIVATIONS",
    "SUPPORTED_DTYPES",
    "DivisorScaling",
    "LinearScaling",
    "Llama3Scaling",
    "ModelConfig",
    "RopeConfig",
    "RopeScaling",
]

SUPPORTED_ACTIVATIONS: tuple[str, ...] = ("silu",)
SUPPORTED_DTYPES: tuple[str, ...] = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor` (every frequency is)."""

    factor: float

    def apply(self, inv_freq: torch.Tensor) -> torch.Tensor:
        return inv_freq / self.factor

    def problems(self) -> list[str]:
        return _factor_problems(self.factor)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between are interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def apply(self, inv_freq: torch.Tensor) -> torch.Tensor:
        # How often a wavelength fits into the original context decides: up to low_freq_factor times it is stretched
        # in full, from high_freq_factor times on it is kept.
        periods = self.original_max_position_embeddings / (2 * math.pi / inv_freq)
        kept = (periods - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0.0, 1.0)
        return (1.0 - kept) * inv_freq / self.factor + kept * inv_freq

    def problems(self) -> list[str]:
        problems = _factor_problems(self.factor)
        if not 0.0 < self.low_freq_factor < self.high_freq_factor:
            problems.append(
                "rope scaling needs 0 < low_freq_factor < high_freq_factor, got "
                f"{self.low_freq_factor} and {self.high_freq_factor}"
            )
        if self.original_max_position_embeddings < 1:
            problems.append(
                f"rope scaling needs original_max_position_embeddings >= 1, got {self.original_max_position_embeddings}"
            )
        return problems


@dataclass(frozen=True, slots=True)
class DivisorScaling:
    """One divisor per frequency, as a GGUF file stores them in `rope_freqs.weight`; replaces any other scaling."""

    divisors: tuple[float, ...]

    def apply(self, inv_freq: torch.Tensor) -> torch.Tensor:
        return inv_freq / torch.tensor(self.divisors, dtype=inv_freq.dtype, device=inv_freq.device)

    def problems(self) -> list[str]:
        wrong = [divisor for divisor in self.divisors if not (math.isfinite(divisor) and divisor > 0.0)]
        return [f"rope frequency divisors must be positive numbers, got {wrong[0]}"] if wrong else []


def _factor_problems(factor: float) -> list[str]:
    return [] if math.isfinite(factor) and factor > 0.0 else [f"rope scaling factor must be positive, got {factor}"]


RopeScaling = LinearScaling | Llama3Scaling | DivisorScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding over the first `rotary_dim` elements of each head (halves paired, not neighbours)."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling | None

    def inv_freq(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """The scaled inverse frequencies: [rotary_dim / 2], float32; the angle at position p is `p * inv_freq`."""
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.int64, device=device).float() / self.rotary_dim
        inv_freq = 1.0 / (self.theta**exponents)  # [rotary_dim / 2]
        return inv_freq if self.scaling is None else self.scaling.apply(inv_freq)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One decoder-only model. Whoever reads it from a file calls `validated` before passing it on.

    Attributes:
        architecture: the family whose code runs it, e.g. "llama".
        head_dim: the true size of one head; need not be hidden_size / num_heads.
        windows: attention window of each layer (position i sees j with i - W < j <= i), None for full attention.
        attn_soft_cap: attention scores become cap * tanh(score / cap); None leaves them.
        final_soft_cap: the same for the logits.
        eos_token_ids: every id that ends a sequence by default, without duplicates.
        dtype: the dtype the checkpoint was made in, e.g. "bfloat16"; what `model.dtype=auto` starts from.
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
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    hidden_act: str
    windows: tuple[int | None, ...]
    attn_soft_cap: float | None
    final_soft_cap: float | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    dtype: str

    def validated(self, origin: str) -> ModelConfig:
        """Returns itself, or raises a ModelError that starts with `origin` and lists every contradiction."""
        problems = [*self._size_problems(), *self._rope_problems(), *self._choice_problems()]
        if problems:
            raise ModelError(f"{origin}: {'; '.join(problems)}")
        return self

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
        rope = self.rope
        problems = [] if rope.scaling is None else rope.scaling.problems()
        if not 0 < rope.rotary_dim <= self.head_dim or rope.rotary_dim % 2 != 0:
            problems.append(f"rotary_dim must be even and at most head_dim={self.head_dim}, got {rope.rotary_dim}")
        if not (math.isfinite(rope.theta) and rope.theta > 0.0):
            problems.append(f"rope theta must be a positive number, got {rope.theta}")
        if isinstance(rope.scaling, DivisorScaling) and len(rope.scaling.divisors) * 2 != rope.rotary_dim:
            problems.append(
                f"rope needs {rope.rotary_dim // 2} frequency divisors (rotary_dim / 2), "
                f"got {len(rope.scaling.divisors)}"
            )
        return problems

    def _choice_problems(self) -> list[str]:
        problems: list[str] = []
        if self.hidden_act not in SUPPORTED_ACTIVATIONS:
            problems.append(f"hidden_act must be one of {', '.join(SUPPORTED_ACTIVATIONS)}, got {self.hidden_act!r}")
        if self.dtype not in SUPPORTED_DTYPES:
            problems.append(f"dtype must be one of {', '.join(SUPPORTED_DTYPES)}, got {self.dtype!r}")
        if len(self.windows) != self.num_layers:
            problems.append(f"windows needs one entry per layer ({self.num_layers}), got {len(self.windows)}")
        problems += [
            f"an attention window must be at least 1, got {w}" for w in self.windows if w is not None and w < 1
        ]
        return problems
