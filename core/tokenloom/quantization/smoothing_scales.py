"""How much two roundings to int8 cost for given scales of input features, and the scales that cost the least.

With x' = x / s and W' = W s (s for each input feature c, rows t of the input, output features o), rounding adds noise
of a twelfth of a step squared to each number, and the steps follow from the largest number of a row:

    inputs    mean_t max_c (x'_tc)^2 * sum_oc (W'_oc)^2       / (12 * 127^2)
    weights   sum_o  max_c (W'_oc)^2 * sum_c mean_t (x'_tc)^2 / (12 * 127.5^2)

The logarithm of each factor is convex in log s, and so are that of the products and of their sum: there is one optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from tokenloom.quantization.method import InputScale

__all__ = ["SmoothingModel"]

_LEAST = 1e-30  # stands for zero in logarithms
_NUM_STEPS, _FIRST_STEP, _LAST_STEP = 150, 0.2, 0.0005
_SLOW, _FAST = 0.99, 0.9  # of Adam's means


@final
@dataclass(frozen=True, slots=True)
class SmoothingModel:
    """The expected error of one layer's output as a function of log s.

    Attributes:
        form: which input features share an element of the scale.
        log_rows: log |x|, fp32 [R, K], of sampled rows.
        log_weight: log |W|, fp32 [N, K].
        input_energy: mean of x^2 over all rows, fp32 [K].
        weight_energy: sum of W^2 over output features, fp32 [K].
    """

    form: InputScale
    log_rows: torch.Tensor
    log_weight: torch.Tensor
    input_energy: torch.Tensor
    weight_energy: torch.Tensor

    @classmethod
    def of(
        cls, form: InputScale, rows: torch.Tensor, weight: torch.Tensor, input_energy: torch.Tensor
    ) -> SmoothingModel:
        """The model of fp32 rows [R, K] and a weight [N, K]; `input_energy` [K] knows of rows that were not sampled."""
        log_rows, log_weight = (each.abs().clamp_(min=_LEAST).log_() for each in (rows, weight))
        return cls(form, log_rows, log_weight, input_energy, weight.square().sum(dim=0))

    def solved(self, start: torch.Tensor) -> torch.Tensor:
        """The scale of the least expected error: fp32 [P], above zero.

        Args:
            start: fp32 [P], where to begin. Maxima make the error's slope jump, so steps shrink as they go on (Adam),
                and the best point on the way is taken.
        """
        point = start.log()
        best, least = point, torch.inf
        mean, square = torch.zeros_like(point), torch.zeros_like(point)
        for step in range(_NUM_STEPS):
            error, slope = self.log_error(point)
            if error < least:
                best, least = point, error
            mean = _FAST * mean + (1 - _FAST) * slope
            square = _SLOW * square + (1 - _SLOW) * slope.square()
            direction = (mean / (1 - _FAST ** (step + 1))) / ((square / (1 - _SLOW ** (step + 1))).sqrt() + 1e-8)
            point = point - _FIRST_STEP * (_LAST_STEP / _FIRST_STEP) ** (step / _NUM_STEPS) * direction
        return best.exp()

    def log_error(self, log_scale: torch.Tensor) -> tuple[float, torch.Tensor]:
        """(log of the expected error but for a constant, its slope fp32 [P]) at fp32 [P]."""
        spread = log_scale[self.form.producers]  # [K]
        grown = (2 * spread).exp()
        of_rows, row_slope = _mean_largest(self.log_rows, -spread)
        of_weight, weight_slope = _mean_largest(self.log_weight, spread)
        weight_energy, input_energy = self.weight_energy * grown, self.input_energy / grown  # [K]
        total_weight = weight_energy.sum().clamp(min=_LEAST)
        total_input = input_energy.sum().clamp(min=_LEAST)
        inputs = of_rows * total_weight / 127.0**2
        weights = of_weight * self.log_weight.shape[0] * total_input / 127.5**2
        share = inputs / (inputs + weights)
        slope = share * (2 * weight_energy / total_weight - row_slope)
        slope += (1 - share) * (weight_slope - 2 * input_energy / total_input)
        per_producer = torch.zeros(self.form.num_producers).index_add_(0, self.form.producers, slope)
        return float((inputs + weights).log()), per_producer


def _mean_largest(logs: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean over rows of max_c exp(2 (logs + shift)), and the slope of its logarithm: [R, K], [K] -> [], [K]."""
    largest, where = (logs + shift).max(dim=1)
    squares = (2 * largest).exp().clamp(min=_LEAST)  # [R]
    total = squares.sum()
    return total / squares.numel(), torch.zeros_like(shift).index_add_(0, where, 2 * squares / total)
