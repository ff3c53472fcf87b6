"""AWQ: input features that matter are given more of the grid, by scales that what comes before the layer takes over.

The output's error is E G E^T, E being the change of the weight and G the mean of x x^T: so every candidate is judged on
all of the calibration text at the cost of one product.

Source: Lin et al., AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration (2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch

from tokenloom.quantization.method import InputScale, LinearToRound, RoundedLinear, RoundingMethod
from tokenloom.quantization.rounded_weight import RoundingScheme, group_ranges, round_to_nearest

__all__ = ["AWQ"]

_LEAST_SCALE = 1e-4
_CLIP_STEP, _NUM_CLIPS = 0.05, 10


@final
@dataclass(frozen=True, slots=True)
class AWQ(RoundingMethod):
    """AWQ with its two searches.

    Attributes:
        num_ratios: exponents that are tried, from 0 to below 1; each with and without the weights' own magnitudes.
        clip: also search how far the range of each group may shrink.
    """

    num_ratios: int = 20
    clip: bool = True

    @property
    def title(self) -> str:
        return f"AWQ ({self.num_ratios} exponents, {'with' if self.clip else 'no'} clipping)"

    def round(self, layer: LinearToRound) -> RoundedLinear:
        gram = layer.inputs.gram()
        weight, scale = layer.weight, self._best_scale(layer, gram)
        if scale is not None and layer.input_scale is not None:
            spread = scale[layer.input_scale.producers]  # [K]
            weight, gram = weight * spread, gram / torch.outer(spread, spread)
        shrink = _best_shrink(weight, layer.scheme, gram, layer.num_unclipped) if self.clip else None
        return RoundedLinear(round_to_nearest(weight, layer.scheme, shrink), scale)

    def _best_scale(self, layer: LinearToRound, gram: torch.Tensor) -> torch.Tensor | None:
        """The settled scale of the least error, fp32 [P]; None if none is better than no scale."""
        if layer.input_scale is None:
            return None
        best = None
        least = _output_error(round_to_nearest(layer.weight, layer.scheme).dequantized() - layer.weight, gram)
        for wanted in self._candidates(layer, layer.input_scale):
            scale = layer.input_scale.settled(wanted)
            spread = scale[layer.input_scale.producers]
            rounded = round_to_nearest(layer.weight * spread, layer.scheme).dequantized()
            error = _output_error(rounded / spread - layer.weight, gram)
            if error < least:
                best, least = scale, error
        return best

    def _candidates(self, layer: LinearToRound, form: InputScale) -> Iterator[torch.Tensor]:
        inputs = form.mean(layer.inputs.mean_abs).clamp(min=_LEAST_SCALE)
        weights = form.mean(_relative_magnitude(layer.weight, layer.scheme))
        for step in range(self.num_ratios):
            ratio = step / self.num_ratios
            for wanted in (inputs**ratio, inputs**ratio / (weights ** (1 - ratio) + _LEAST_SCALE)):
                wanted = wanted.clamp(min=_LEAST_SCALE)
                yield wanted / (wanted.max() * wanted.min()).sqrt()


def _relative_magnitude(weight: torch.Tensor, scheme: RoundingScheme) -> torch.Tensor:
    """Mean over rows of |w| over the largest |w| of its group: fp32 [K]."""
    magnitude, num_columns = weight.abs(), weight.shape[1]
    largest = group_ranges(magnitude, scheme)[1].clamp(min=torch.finfo(torch.float32).smallest_normal)  # [N, G]
    return (magnitude / largest[:, torch.arange(num_columns) // scheme.width(num_columns)]).mean(dim=0)


def _output_error(change: torch.Tensor, gram: torch.Tensor) -> float:
    """Mean square change of the output, summed over its features."""
    return float(((change @ gram) * change).sum())


def _best_shrink(weight: torch.Tensor, scheme: RoundingScheme, gram: torch.Tensor, num_unclipped: int) -> torch.Tensor:
    """How far the range of each group shrinks, fp32 [N, G], by the error that its own columns make in the output."""
    num_rows, num_columns = weight.shape
    width = scheme.width(num_columns)
    best = torch.ones(num_rows, -(-num_columns // width))
    least = torch.full_like(best, torch.inf)
    for step in range(_NUM_CLIPS):
        shrink = torch.full_like(best, 1 - _CLIP_STEP * step)
        change = round_to_nearest(weight, scheme, shrink).dequantized() - weight
        for group in range(best.shape[1]):
            columns = slice(group * width, (group + 1) * width)
            own = change[:, columns]
            error = ((own @ gram[columns, columns]) * own).sum(dim=1)  # [N]
            is_better = error < least[:, group]
            least[is_better, group] = error[is_better]
            best[is_better, group] = shrink[is_better, group]
    best[:num_unclipped] = 1.0
    return best
