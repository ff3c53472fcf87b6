"""Rotary position embedding as data: base, size, and how the frequencies are stretched beyond the trained length.

R is the number of rotated elements of a head; they form R / 2 pairs, each turned at its own frequency.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch

__all__ = [
    "DivisorScaling",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "RopeConfig",
    "RopeScaling",
    "YarnScaling",
]

_MIN_TURNS, _MAX_TURNS = 1e-9, 1e9
"""No pair turns less or more often within any length; beyond them the logarithms of YaRN's ramp leave the floats."""


class RopeScaling(ABC):
    """How one method changes the frequencies. Implementations are frozen dataclasses: equal ones share a table."""

    __slots__ = ()

    @abstractmethod
    def apply(self, periods: torch.Tensor, theta: float) -> torch.Tensor:
        """The inverse frequencies.

        Args:
            periods: theta^(2i / R) for each pair i: [R / 2], float32.
            theta: the base.

        Returns:
            [R / 2], float32; without any scaling it would be 1 / periods.
        """

    @abstractmethod
    def problems(self, num_pairs: int) -> list[str]:
        """What contradicts itself, or the number of pairs, R / 2."""

    @property
    def amplitude(self) -> float:
        """Multiplies cosines and sines, and so the scores by its square; files call it the attention factor."""
        return 1.0

    def for_length(self, max_len: int) -> RopeScaling:
        """What it amounts to in an engine whose longest sequence has `max_len` tokens."""
        return self


@final
@dataclass(frozen=True, slots=True)
class LinearScaling(RopeScaling):
    """Positions are divided by `factor` (every frequency is)."""

    factor: float

    def apply(self, periods: torch.Tensor, theta: float) -> torch.Tensor:
        return (1.0 / periods) / self.factor

    def problems(self, num_pairs: int) -> list[str]:
        return _factor_problems(self.factor)


@final
@dataclass(frozen=True, slots=True)
class Llama3Scaling(RopeScaling):
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between are interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def apply(self, periods: torch.Tensor, theta: float) -> torch.Tensor:
        inv_freq = 1.0 / periods
        # How often a wavelength fits into the original context decides: up to low_freq_factor times it is stretched
        # in full, from high_freq_factor times on it is kept.
        num_fits = self.original_max_position_embeddings / (2 * math.pi / inv_freq)
        kept = (num_fits - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0.0, 1.0)
        return (1.0 - kept) * inv_freq / self.factor + kept * inv_freq

    def problems(self, num_pairs: int) -> list[str]:
        problems = [*_factor_problems(self.factor), *_length_problems(self.original_max_position_embeddings)]
        if not 0.0 < self.low_freq_factor < self.high_freq_factor:
            problems.append(
                "rope scaling needs 0 < low_freq_factor < high_freq_factor, got "
                f"{self.low_freq_factor} and {self.high_freq_factor}"
            )
        return problems


@final
@dataclass(frozen=True, slots=True)
class YarnScaling(RopeScaling):
    """YaRN: pairs that turn often within the original length are kept, slow ones are stretched, with a ramp between.

    Attributes:
        factor: by how much the slow pairs are stretched.
        original_max_position_embeddings: the trained length, tokens.
        attention_factor: multiplies cosines and sines.
        beta_fast: pairs that turn more often than this within the trained length are kept.
        beta_slow: pairs that turn less often are stretched in full.
        truncate: the ramp's ends are rounded outwards to whole pairs.

    Source: Peng et al., YaRN (2023), section 3.2 (ramp) and 3.4 (attention factor).
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def apply(self, periods: torch.Tensor, theta: float) -> torch.Tensor:
        num_pairs = periods.shape[0]
        low, high = (self._pair_that_turns(beta, num_pairs, theta) for beta in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * num_pairs - 1)
        # A ramp without length is a step.
        width = high - low or 0.001
        stretched = ((torch.arange(num_pairs, device=periods.device).float() - low) / width).clamp(0.0, 1.0)
        kept = 1.0 - stretched
        return (1.0 / (self.factor * periods)) * (1.0 - kept) + (1.0 / periods) * kept

    def _pair_that_turns(self, num_turns: float, num_pairs: int, theta: float) -> float:
        """Which pair, as a fractional index, turns `num_turns` times within the original length."""
        length_of_turn = self.original_max_position_embeddings / (num_turns * 2 * math.pi)
        return num_pairs * math.log(length_of_turn) / math.log(theta)

    def problems(self, num_pairs: int) -> list[str]:
        problems = [*_factor_problems(self.factor), *_length_problems(self.original_max_position_embeddings)]
        problems += _amplitude_problems(self.attention_factor)
        if not _MIN_TURNS <= self.beta_slow <= self.beta_fast <= _MAX_TURNS:
            problems.append(
                f"yarn needs 0 < beta_slow <= beta_fast, from {_MIN_TURNS} to {_MAX_TURNS}, got {self.beta_slow} and "
                f"{self.beta_fast}"
            )
        return problems

    @property
    def amplitude(self) -> float:
        return self.attention_factor


@final
@dataclass(frozen=True, slots=True)
class DivisorScaling(RopeScaling):
    """One divisor per frequency, as a GGUF file stores them in `rope_freqs.weight`; replaces any other scaling."""

    divisors: tuple[float, ...]
    attention_factor: float = 1.0

    def apply(self, periods: torch.Tensor, theta: float) -> torch.Tensor:
        return 1.0 / (torch.tensor(self.divisors, dtype=periods.dtype, device=periods.device) * periods)

    def problems(self, num_pairs: int) -> list[str]:
        return [*_divisor_problems(self.divisors, num_pairs), *_amplitude_problems(self.attention_factor)]

    @property
    def amplitude(self) -> float:
        return self.attention_factor


@final
@dataclass(frozen=True, slots=True)
class LongRopeScaling(RopeScaling):
    """LongRoPE: two sets of divisors, one for sequences within the original length and one for longer ones.

    Keys in the cache are rotated once and stay, so an engine cannot change the set in the middle of a sequence. It
    keeps to one: the long set if its longest sequence exceeds the original length, else the short one. (vLLM does the
    same. Transformers changes the set at each forward pass, and leaves older keys as they are.)

    Source: Ding et al., LongRoPE (2024), section 3.
    """

    short_divisors: tuple[float, ...]
    long_divisors: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float

    def apply(self, periods: torch.Tensor, theta: float) -> torch.Tensor:
        raise AssertionError("LongRoPE depends on the longest sequence; ask for_length() first")

    def problems(self, num_pairs: int) -> list[str]:
        problems = [*_length_problems(self.original_max_position_embeddings)]
        problems += _divisor_problems(self.short_divisors, num_pairs) + _divisor_problems(self.long_divisors, num_pairs)
        return problems + _amplitude_problems(self.attention_factor)

    @property
    def amplitude(self) -> float:
        return self.attention_factor

    def for_length(self, max_len: int) -> RopeScaling:
        is_long = max_len > self.original_max_position_embeddings
        return DivisorScaling(self.long_divisors if is_long else self.short_divisors, self.attention_factor)


@final
@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding over the first `rotary_dim` elements of each head (halves paired, not neighbours)."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling | None

    def inv_freq(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """The scaled inverse frequencies: [rotary_dim / 2], float32; the angle at position p is `p * inv_freq`."""
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.int64, device=device).float() / self.rotary_dim
        periods = self.theta**exponents  # [rotary_dim / 2]
        return 1.0 / periods if self.scaling is None else self.scaling.apply(periods, self.theta)

    @property
    def amplitude(self) -> float:
        """Multiplies cosines and sines."""
        return 1.0 if self.scaling is None else self.scaling.amplitude

    def for_length(self, max_len: int) -> RopeConfig:
        """The same rope in an engine whose longest sequence has `max_len` tokens; differs for LongRoPE only."""
        return self if self.scaling is None else dataclasses.replace(self, scaling=self.scaling.for_length(max_len))

    def problems(self, head_dim: int) -> list[str]:
        """What contradicts itself, or the size of a head."""
        problems = [] if self.scaling is None else self.scaling.problems(self.rotary_dim // 2)
        if not 0 < self.rotary_dim <= head_dim or self.rotary_dim % 2 != 0:
            problems.append(f"rotary_dim must be even and at most head_dim={head_dim}, got {self.rotary_dim}")
        if not (math.isfinite(self.theta) and self.theta > 1.0):
            problems.append(f"rope theta must be a positive number above 1, got {self.theta}")
        return problems


def _factor_problems(factor: float) -> list[str]:
    return [] if math.isfinite(factor) and factor > 0.0 else [f"rope scaling factor must be positive, got {factor}"]


def _amplitude_problems(factor: float) -> list[str]:
    return [] if math.isfinite(factor) and factor > 0.0 else [f"rope attention_factor must be positive, got {factor}"]


def _length_problems(length: int) -> list[str]:
    return [] if length >= 1 else [f"rope scaling needs original_max_position_embeddings >= 1, got {length}"]


def _divisor_problems(divisors: tuple[float, ...], num_pairs: int) -> list[str]:
    problems = []
    wrong = [divisor for divisor in divisors if not (math.isfinite(divisor) and divisor > 0.0)]
    if wrong:
        problems.append(f"rope frequency divisors must be positive numbers, got {wrong[0]}")
    if len(divisors) != num_pairs:
        problems.append(f"rope needs {num_pairs} frequency divisors (rotary_dim / 2), got {len(divisors)}")
    return problems
