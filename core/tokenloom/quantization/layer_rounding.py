"""Rounds the linear layers of one decoder layer, first to last, each for what the rounded ones before it give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

import torch

from tokenloom.model_config import ModelConfig
from tokenloom.quantization.input_statistics import InputStatistics
from tokenloom.quantization.layer_runner import LayerRunner, Observer
from tokenloom.quantization.method import InputScale, LinearToRound, RoundedLinear, RoundingMethod
from tokenloom.quantization.rounded_weight import RoundedWeight, RoundingScheme, round_rows
from tokenloom.quantization.scale_producers import Place, norm_name, norm_scale, producer_rows, settled_norm
from tokenloom.quantization.studied_linear import StudiedLinear

__all__ = ["LayerReport", "LayerRounding", "RoundedLayer"]


@dataclass(frozen=True, slots=True)
class LayerReport:
    """What became of one linear layer.

    Attributes:
        name: full dotted name.
        error: mean square change of its output over the output's mean square, on sampled rows of the calibration text;
            None where no text is run.
        note: what the method says.
    """

    name: str
    error: float | None
    note: str


@dataclass(slots=True)
class RoundedLayer:
    """What a decoder layer has become.

    Attributes:
        weights: of the linear layers that were rounded, by full dotted name.
        biases: fp32 [N] that have changed, by the same names.
        norms: fp32 weights of norms that have changed, by full name without ".weight".
        reports: one for each linear layer that was rounded.
    """

    weights: dict[str, RoundedWeight] = field(default_factory=dict)
    biases: dict[str, torch.Tensor] = field(default_factory=dict)
    norms: dict[str, torch.Tensor] = field(default_factory=dict)
    reports: list[LayerReport] = field(default_factory=list)


@final
class LayerRounding:
    """One decoder layer under way.

    Args:
        runner: of the layer.
        index: its number.
        config: of the model.
        method: rounds each linear layer.
        schemes: of the linear layers that are to be rounded, by full dotted name; the others stay as they are.
        norms: weights of the layer's norms as the checkpoint has them, by full name without ".weight".
        stored_dtype: that norms are stored in.
    """

    def __init__(
        self,
        runner: LayerRunner,
        index: int,
        config: ModelConfig,
        method: RoundingMethod,
        schemes: Mapping[str, RoundingScheme],
        norms: Mapping[str, torch.Tensor],
        stored_dtype: torch.dtype,
    ) -> None:
        self._runner, self._index, self._config, self._method = runner, index, config, method
        self._schemes, self._norms, self._stored_dtype = schemes, norms, stored_dtype
        self._done = RoundedLayer()

    def run(self) -> RoundedLayer:
        """Rounds all four; the runner's states are then those after the rounded layer."""
        runner = self._runner
        self._round("qkv", runner.qkv, runner.observe_qkv)
        self._round("output", runner.output, runner.observe_output)
        self._round("gate_up", runner.gate_up, runner.observe_gate_up)
        self._round("down", runner.down, runner.observe_down)
        if self._method.needs_inputs:
            runner.finish()
        return self._done

    def _round(self, place: Place, linear: StudiedLinear, observe: Callable[[Observer], None]) -> None:
        scheme, statistics = self._schemes.get(linear.spec.name), None
        if self._method.needs_inputs:
            statistics = self._observed(linear, observe, is_rounded=scheme is not None)
        if scheme is None:
            return
        unclipped = (self._config.num_heads + self._config.num_kv_heads) * self._config.head_dim
        task = LinearToRound(
            name=linear.spec.name,
            weight=linear.original.float(),
            scheme=scheme,
            statistics=statistics,
            input_scale=self._input_scale(place),
            num_unclipped=unclipped if place == "qkv" else 0,
        )
        result = self._method.round(task)
        self._done.weights[task.name] = result.weight
        error = _error(task, result, rounds_activations=self._method.rounds_activations)
        self._done.reports.append(LayerReport(task.name, error, result.note))
        if result.input_scale is not None:
            self._hand_over(place, result.input_scale)
        self._use(linear)

    def _observed(
        self, linear: StudiedLinear, observe: Callable[[Observer], None], *, is_rounded: bool
    ) -> InputStatistics | None:
        if not is_rounded:
            observe(_unwatched)
            return None
        statistics = InputStatistics(
            linear.spec.in_features,
            len(self._runner.states),
            has_gram=self._method.needs_gram,
            num_sampled=self._method.num_sampled,
        )
        observe(statistics.add)
        return statistics

    def _input_scale(self, place: Place) -> InputScale | None:
        norm = norm_name(self._config, self._index, place)
        if norm is not None:
            return norm_scale(self._norms[norm], self._config.norm_offset, self._stored_dtype)
        rows = producer_rows(self._config, place)
        if rows is None:
            return None
        producer = self._done.weights.get(self._linear(rows.place).spec.name)
        return None if producer is None else rows.scale(producer)

    def _hand_over(self, place: Place, scale: torch.Tensor) -> None:
        """Divides what stands before the layer; the text that was kept for the layer is divided as well."""
        norm = norm_name(self._config, self._index, place)
        if norm is not None:
            stored, _ = settled_norm(self._norms[norm], self._config.norm_offset, self._stored_dtype, scale)
            self._done.norms[norm] = stored
            self._runner.set_norm(norm, stored)
            return
        rows = producer_rows(self._config, place)
        assert rows is not None, f"nothing before {place} takes a scale over"
        producer = self._linear(rows.place)
        name = producer.spec.name
        self._done.weights[name] = self._done.weights[name].with_rows_divided(rows.start, scale)
        if producer.bias is not None:
            producer.bias = producer.bias.clone()
            producer.bias[rows.start : rows.start + scale.numel()] /= scale
            self._done.biases[name] = producer.bias
        self._use(producer)
        self._runner.divide_kept(scale[rows.columns])

    def _use(self, linear: StudiedLinear) -> None:
        linear.use(self._done.weights[linear.spec.name].dequantized())
        linear.rounds_activations = self._method.rounds_activations

    def _linear(self, place: Place) -> StudiedLinear:
        runner = self._runner
        return {"qkv": runner.qkv, "output": runner.output, "gate_up": runner.gate_up, "down": runner.down}[place]


def _unwatched(_: torch.Tensor) -> None:
    """Of a layer that stays as it is, inputs tell nothing."""


def _error(task: LinearToRound, result: RoundedLinear, *, rounds_activations: bool) -> float | None:
    if task.statistics is None:
        return None
    rows = task.statistics.sample()  # [R, K]
    exact = rows @ task.weight.T
    if result.input_scale is not None and task.input_scale is not None:
        rows = rows / result.input_scale[task.input_scale.producers]
    output = (round_rows(rows) if rounds_activations else rows) @ result.weight.dequantized().T
    return float((output - exact).square().sum() / exact.square().sum().clamp(min=1e-30))
