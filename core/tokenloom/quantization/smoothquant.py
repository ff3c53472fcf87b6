"""SmoothQuant: int8 weights and activations; weights take over what is large in activations before both are rounded.

The scales of the paper are candidates beside those of the least expected error (`smoothing_scales`). Weights are then
rounded as GPTQ does, for inputs that are rounded themselves.

Source: Xiao et al., SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models (2022).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch

from tokenloom.quantization.gptq import GPTQ
from tokenloom.quantization.method import InputScale, LinearToRound, RoundedLinear, RoundingMethod
from tokenloom.quantization.rounded_weight import round_rows, round_to_nearest
from tokenloom.quantization.smoothing_scales import SmoothingModel

__all__ = ["SmoothQuant"]

_LEAST = 1e-5
_ALPHAS = tuple(step / 10 for step in range(3, 10))  # 0.3 to 0.9
_NUM_SAMPLED = 4096  # scales of as many features as a layer has are fitted to them
_JUDGING = 8  # one of so many sampled rows judges, the others are fitted to
_GPTQ = GPTQ(damping=1e-4)  # little: rounded inputs have a noise of their own


@final
@dataclass(frozen=True, slots=True)
class SmoothQuant(RoundingMethod):
    """SmoothQuant.

    Attributes:
        alpha: how much of the activations' magnitude goes to the weights, 0 to 1; None takes for each layer what
            changes its output least of: the solution for the expected error, no smoothing, and alphas. The magnitude
            is the largest one of a feature, as in the paper; the search tries the mean as well, which few tokens with
            huge activations do not decide.
    """

    alpha: float | None = None

    @property
    def title(self) -> str:
        scales = "scales solved by layer" if self.alpha is None else f"alpha {self.alpha:g}"
        return f"SmoothQuant ({scales}, weights rounded as in GPTQ)"

    @property
    def num_sampled(self) -> int:
        return _NUM_SAMPLED

    @property
    def rounds_activations(self) -> bool:
        return True

    def round(self, layer: LinearToRound) -> RoundedLinear:
        scale, note = None, ""
        weight, gram, rows = layer.weight.clone(), layer.inputs.gram(), layer.inputs.sample(_NUM_SAMPLED)
        if layer.input_scale is not None:
            scale, note = self._scale(layer, layer.input_scale, rows, gram)
        if scale is not None and layer.input_scale is not None:
            spread = scale[layer.input_scale.producers]  # [K]
            weight, gram, rows = weight * spread, gram / torch.outer(spread, spread), rows / spread
        gram.diagonal().add_((round_rows(rows) - rows).square().mean())  # the noise of rounded inputs
        rounded = _GPTQ.round_for(weight, gram, layer.scheme, layer.name)
        return RoundedLinear(rounded.weight, scale, ", ".join(each for each in (note, rounded.note) if each))

    def _scale(
        self, layer: LinearToRound, form: InputScale, rows: torch.Tensor, gram: torch.Tensor
    ) -> tuple[torch.Tensor | None, str]:
        """(settled [P], or None for no smoothing; what the report says of it)."""
        if self.alpha is not None:
            (found,) = _scales(layer, form, layer.inputs.max_abs, (self.alpha,))
            return found, f"alpha {self.alpha:g}"
        is_judging = torch.arange(rows.shape[0]) % _JUDGING == 0
        judge = _Judge(layer, form, rows[is_judging], gram)
        best, note, least = None, "no smoothing", judge.error(None)
        for name, magnitude in (("largest", layer.inputs.max_abs), ("mean", layer.inputs.mean_abs)):
            for alpha, scale in zip(_ALPHAS, _scales(layer, form, magnitude, _ALPHAS), strict=True):
                error = judge.error(scale)
                if error < least:
                    best, note, least = scale, f"alpha {alpha:g} of the {name} inputs", error
        fitted = rows if bool(is_judging.all()) else rows[~is_judging]
        model = SmoothingModel.of(form, fitted, layer.weight, gram.diagonal())
        solved = form.settled(model.solved(torch.ones(form.num_producers) if best is None else best))
        return (solved, "solved") if judge.error(solved) < least else (best, note)


def _scales(
    layer: LinearToRound, form: InputScale, magnitude: torch.Tensor, alphas: tuple[float, ...]
) -> Iterator[torch.Tensor]:
    """For each alpha the paper's scale of inputs of this magnitude [K]: settled, fp32 [P]."""
    weights = form.largest(layer.weight.abs().amax(dim=0)).clamp(min=_LEAST)
    inputs = form.largest(magnitude).clamp(min=_LEAST)
    for alpha in alphas:
        yield form.settled(inputs**alpha / weights ** (1 - alpha))


@final
@dataclass(frozen=True, slots=True)
class _Judge:
    """Measures what rounding to nearest does with a scale.

    Attributes:
        layer, form: what is scaled.
        rows: fp32 [R, K], whose rounding is tried.
        gram: mean of x x^T over all rows, [K, K]: what a change of the weight does to the output.
    """

    layer: LinearToRound
    form: InputScale
    rows: torch.Tensor
    gram: torch.Tensor

    def error(self, scale: torch.Tensor | None) -> float:
        """Mean square change of an output row, by rounded weights and by rounded inputs."""
        rows, weight, spread = self.rows, self.layer.weight, torch.ones(self.rows.shape[1])
        if scale is not None:
            spread = scale[self.form.producers]
            rows, weight = rows / spread, weight * spread
        rounded = round_to_nearest(weight, self.layer.scheme).dequantized()
        change = (rounded - weight) / spread
        of_inputs = ((round_rows(rows) - rows) @ rounded.T).square().sum(dim=1).mean()
        return float(((change @ self.gram) * change).sum() + of_inputs)
