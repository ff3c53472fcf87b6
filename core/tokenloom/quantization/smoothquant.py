"""SmoothQuant: int8 weights and activations; weights take over what is large in activations before both are rounded.

Source: Xiao et al., SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from tokenloom.quantization.method import InputScale, LinearToRound, RoundedLinear, RoundingMethod
from tokenloom.quantization.rounded_weight import round_rows, round_to_nearest

__all__ = ["SmoothQuant"]

_LEAST = 1e-5
_ALPHAS = tuple(step / 20 for step in range(5, 20))  # 0.25 to 0.95


@final
@dataclass(frozen=True, slots=True)
class SmoothQuant(RoundingMethod):
    """SmoothQuant.

    Attributes:
        alpha: how much of the activations' magnitude goes to the weights, 0 to 1; None searches for each layer, on
            rows that both roundings are applied to, no smoothing being one of the candidates. The magnitude is the
            largest one of a feature, as in the paper; the search tries the mean as well, which few tokens with huge
            activations do not decide.
    """

    alpha: float | None = None

    @property
    def title(self) -> str:
        return f"SmoothQuant ({'alpha searched by layer' if self.alpha is None else f'alpha {self.alpha:g}'})"

    @property
    def needs_gram(self) -> bool:
        return False

    @property
    def rounds_activations(self) -> bool:
        return True

    def round(self, layer: LinearToRound) -> RoundedLinear:
        scale, note = None, ""
        if layer.input_scale is not None:
            scale, note = self._best_scale(layer, layer.input_scale)
        weight = layer.weight
        if scale is not None and layer.input_scale is not None:
            weight = weight * scale[layer.input_scale.producers]
        return RoundedLinear(round_to_nearest(weight, layer.scheme), scale, note)

    def _best_scale(self, layer: LinearToRound, form: InputScale) -> tuple[torch.Tensor | None, str]:
        weights = form.largest(layer.weight.abs().amax(dim=0)).clamp(min=_LEAST)

        def scale_of(magnitude: torch.Tensor, alpha: float) -> torch.Tensor:
            inputs = form.largest(magnitude).clamp(min=_LEAST)
            return form.settled(inputs**alpha / weights ** (1 - alpha))

        if self.alpha is not None:
            return scale_of(layer.inputs.max_abs, self.alpha), f"alpha {self.alpha:g}"
        sample = layer.inputs.sample()  # [R, K]
        exact = sample @ layer.weight.T
        best, note, least = None, "no smoothing", _error(sample, layer, None, exact)
        for name, magnitude in (("largest", layer.inputs.max_abs), ("mean", layer.inputs.mean_abs)):
            for alpha in _ALPHAS:
                scale = scale_of(magnitude, alpha)
                error = _error(sample, layer, scale[form.producers], exact)
                if error < least:
                    best, note, least = scale, f"alpha {alpha:g} of the {name} inputs", error
        return best, note


def _error(sample: torch.Tensor, layer: LinearToRound, spread: torch.Tensor | None, exact: torch.Tensor) -> float:
    """Mean square change of the output on sampled rows; `spread` is the scale of each input feature."""
    rows, weight = (sample, layer.weight) if spread is None else (sample / spread, layer.weight * spread)
    output = round_rows(rows) @ round_to_nearest(weight, layer.scheme).dequantized().T
    return float((output - exact).square().mean())
