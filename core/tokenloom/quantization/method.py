"""The contract of a rounding method: it gets one linear layer at a time, and what went into it.

A method may divide the layer's input by a scale for each feature, and multiply the weight's columns by it, if something
before the layer (a norm, another linear layer) can take the division over. Whoever calls it sees to that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tokenloom.errors import ModelError
from tokenloom.quantization.input_statistics import NUM_SAMPLED, InputStatistics
from tokenloom.quantization.rounded_weight import RoundedWeight, RoundingScheme

__all__ = ["InputScale", "LinearToRound", "RoundedLinear", "RoundingMethod"]


@dataclass(frozen=True, slots=True)
class InputScale:
    """How the input of a layer may be scaled.

    Attributes:
        producers: int64 [K]: the element of a scale that each input feature is divided by. Features that one element of
            the producer makes, as attention heads that share a value head, have the same.
        num_producers: P, elements of a scale.
        settled: the scale next to a wanted one, fp32 [P], that the producer can be divided by without rounding; what it
            returns is what the weight is to be multiplied by.
    """

    producers: torch.Tensor
    num_producers: int
    settled: Callable[[torch.Tensor], torch.Tensor]

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Mean of fp32 [K] over the features of each producer: fp32 [P]."""
        return self._reduced(values, "mean")

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """Largest of fp32 [K] over the features of each producer: fp32 [P]."""
        return self._reduced(values, "amax")

    def _reduced(self, values: torch.Tensor, how: str) -> torch.Tensor:
        start = torch.zeros(self.num_producers)
        return start.scatter_reduce(0, self.producers, values, how, include_self=False)


@dataclass(frozen=True, slots=True)
class LinearToRound:
    """One linear layer; several of the checkpoint's that share an input lie below each other.

    Attributes:
        name: full dotted name.
        weight: fp32 [N, K]; not to be changed.
        scheme: what it is to be rounded to.
        statistics: of its input; None where the method asked for none.
        input_scale: None where nothing before the layer can take a scale over.
        num_unclipped: rows at the beginning whose largest weights must stay: queries and keys, whose products make
            scores.
    """

    name: str
    weight: torch.Tensor
    scheme: RoundingScheme
    statistics: InputStatistics | None = None
    input_scale: InputScale | None = None
    num_unclipped: int = 0

    @property
    def inputs(self) -> InputStatistics:
        """The statistics, which were asked for. Raises ModelError if they hold anything but finite numbers."""
        assert self.statistics is not None, f"{self.name}: the method asked for no statistics"
        if not bool(self.statistics.max_abs.isfinite().all()):
            raise ModelError(
                f"{self.name}: its inputs are not finite on the calibration text; try dtype=float32, or another text"
            )
        return self.statistics


@dataclass(frozen=True, slots=True)
class RoundedLinear:
    """What a method made of a layer.

    Attributes:
        weight: of the scaled columns.
        input_scale: settled, fp32 [P]; None leaves the input as it is.
        note: what the report should say, such as a raised damping; "" for nothing.
    """

    weight: RoundedWeight
    input_scale: torch.Tensor | None = None
    note: str = ""


class RoundingMethod(ABC):
    """Rounds linear layers. Holds settings, no state: the order of calls does not matter."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What model cards call it, with its settings."""

    @property
    def needs_inputs(self) -> bool:
        """Whether it looks at a layer's input, so that a calibration text has to be run."""
        return True

    @property
    def needs_gram(self) -> bool:
        """Whether it looks at the products of input features."""
        return True

    @property
    def num_sampled(self) -> int:
        """About how many rows of a layer's input it looks at."""
        return NUM_SAMPLED

    @property
    def rounds_activations(self) -> bool:
        """Whether the layers are run with int8 inputs, rounded row by row."""
        return False

    @abstractmethod
    def round(self, layer: LinearToRound) -> RoundedLinear:
        """Rounds one layer.

        Raises:
            ModelError: its input is not finite.
        """
