"""The methods, each on a layer of its own: what they promise about the layer's output."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.plugins.quant.checkpoint_packing import random
from tokenloom.errors import ModelError
from tokenloom.quantization.awq import AWQ
from tokenloom.quantization.gptq import GPTQ
from tokenloom.quantization.input_statistics import InputStatistics
from tokenloom.quantization.method import InputScale, LinearToRound, RoundedLinear, RoundingMethod
from tokenloom.quantization.rounded_weight import RoundingScheme, round_rows
from tokenloom.quantization.rtn import RoundToNearest
from tokenloom.quantization.scale_producers import norm_scale
from tokenloom.quantization.smoothquant import SmoothQuant

NUM_COLUMNS, NUM_ROWS = 192, 48
SCHEME = RoundingScheme(3, 64, False, torch.float32)


def inputs(seed: int = 0, num_rows: int = 600) -> torch.Tensor:
    """Correlated features, of which a few are large."""
    mixed = random(seed, num_rows, 40) @ random(seed + 1, 40, NUM_COLUMNS) / 40**0.5
    sizes = torch.ones(NUM_COLUMNS)
    sizes[::29] = 12.0
    return (mixed + 0.3 * random(seed + 2, num_rows, NUM_COLUMNS)) * sizes


def statistics(x: torch.Tensor, *, has_gram: bool = True) -> InputStatistics:
    found = InputStatistics(x.shape[1], 2, has_gram=has_gram)
    for part in x.chunk(2):
        found.add(part)
    return found


def layer(x: torch.Tensor, scheme: RoundingScheme = SCHEME) -> LinearToRound:
    scale = norm_scale(random(9, NUM_COLUMNS).abs() + 0.5, 0.0, torch.bfloat16)
    return LinearToRound(
        "model.layers.0.mlp.gate_up_proj", random(7, NUM_ROWS, NUM_COLUMNS), scheme, statistics(x), scale
    )


def effective(task: LinearToRound, result: RoundedLinear) -> torch.Tensor:
    """The weight that the unscaled input is multiplied by."""
    weight = result.weight.dequantized()
    if result.input_scale is None:
        return weight
    assert task.input_scale is not None
    return weight / result.input_scale[task.input_scale.producers]


def error(method: RoundingMethod, x: torch.Tensor, task: LinearToRound) -> float:
    change = x @ (effective(task, method.round(task)) - task.weight).T
    return float(change.square().mean())


def test_statistics_are_those_of_all_rows() -> None:
    x = random(3, 90, 700)  # more features than a block has
    found = InputStatistics(700, 2, has_gram=True)
    for part in (x[:50], x[50:].double()):
        found.add(part)
    torch.testing.assert_close(found.gram(), x.T @ x / 90, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.mean_abs, x.abs().mean(0))
    assert torch.equal(found.max_abs, x.abs().amax(0))
    assert found.num_rows == 90
    assert found.sample().shape == (90, 700)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("static_groups", [False, True])
@pytest.mark.parametrize("group_size", [32, 48, 80, 192, -1])
def test_gptq_beats_rounding_to_nearest(act_order: bool, static_groups: bool, group_size: int) -> None:
    x = inputs()
    task = layer(x, replace(SCHEME, group_size=group_size))
    nearest = error(RoundToNearest(), x, task)
    assert error(GPTQ(0.01, act_order, static_groups), x, task) < 0.5 * nearest


def test_gptq_is_rounding_to_nearest_where_features_are_independent() -> None:
    x = torch.eye(NUM_COLUMNS) * 3.0
    task = layer(x)
    for method in (GPTQ(act_order=False), GPTQ(act_order=True, static_groups=True)):
        assert torch.equal(method.round(task).weight.codes, RoundToNearest().round(task).weight.codes)


def test_gptq_leaves_columns_in_groups_as_they_stand_or_says_which_they_are_in() -> None:
    task = layer(inputs())
    assert GPTQ(act_order=True, static_groups=True).round(task).weight.is_in_order
    ordered = GPTQ(act_order=True, static_groups=False).round(task).weight
    assert not ordered.is_in_order
    assert ordered.group_index.bincount().tolist() == [64, 64, 64]
    first = task.inputs.gram().diagonal().argsort(descending=True)[:64]
    assert set(ordered.group_index[first].tolist()) == {0}


def test_gptq_rounds_blocks_as_it_would_column_by_column() -> None:
    """Against the paper's algorithm without blocks, in float64."""
    x = inputs()
    task = layer(x, replace(SCHEME, group_size=-1))
    gram = task.inputs.gram().double()
    gram += torch.eye(NUM_COLUMNS) * gram.diagonal().mean() * 0.01
    upper = torch.linalg.cholesky(torch.linalg.inv(gram), upper=True)
    weight = task.weight.double().clone()
    rounded = GPTQ(act_order=False).round(task).weight
    scale, zero = rounded.scale.double()[:, 0], rounded.zero.double()[:, 0]
    codes = torch.empty_like(weight)
    for column in range(NUM_COLUMNS):
        codes[:, column] = ((weight[:, column] / scale).round() + zero).clamp(0, 7)
        change = (weight[:, column] - (codes[:, column] - zero) * scale) / upper[column, column]
        weight[:, column:] -= torch.outer(change, upper[column, column:])
    assert float((codes != rounded.codes).double().mean()) < 0.01  # where two codes were equally near


def test_gptq_raises_damping_until_there_is_a_factor_and_says_so() -> None:
    x = inputs()[:, :1].expand(-1, NUM_COLUMNS) * 1e3  # one feature, over and over
    result = GPTQ(damping=1e-9).round(layer(x))
    assert result.note.startswith("damping raised to ")
    assert bool(result.weight.dequantized().isfinite().all())


def test_gptq_takes_features_that_are_never_used() -> None:
    x = inputs()
    x[:, 5] = 0.0
    result = GPTQ().round(layer(x))
    assert bool((result.weight.dequantized()[:, 5] == 0).all())


@pytest.mark.parametrize("method", [GPTQ(), AWQ(), SmoothQuant()], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_inputs_that_are_no_numbers_are_refused(method: RoundingMethod, value: float) -> None:
    x = inputs()
    x[3, 3] = value
    with pytest.raises(ModelError, match=r"gate_up_proj: its inputs are not finite.*try dtype=float32"):
        method.round(layer(x))


def test_awq_beats_rounding_to_nearest_with_each_of_its_searches() -> None:
    x = inputs()
    task = layer(x)
    nearest = error(RoundToNearest(), x, task)
    unscaled = replace(task, input_scale=None)
    scaled, clipped = error(AWQ(clip=False), x, task), error(AWQ(), x, unscaled)
    assert scaled < 0.7 * nearest
    assert clipped < nearest
    assert error(AWQ(), x, task) < min(scaled, clipped)


def test_awq_leaves_the_range_of_queries_and_keys() -> None:
    task = replace(layer(inputs()), input_scale=None, num_unclipped=16)
    clipped, nearest = AWQ().round(task).weight, RoundToNearest().round(task).weight
    assert torch.equal(clipped.scale[:16], nearest.scale[:16])
    assert bool((clipped.scale[16:] < nearest.scale[16:]).any())


def test_awq_gives_features_of_one_producer_one_scale() -> None:
    x = inputs()
    producers = torch.arange(NUM_COLUMNS) % 64
    shared = InputScale(producers, 64, lambda wanted: wanted)
    task = replace(layer(x), input_scale=shared)
    result = AWQ(clip=False).round(task)
    assert result.input_scale is not None
    assert result.input_scale.shape == (64,)
    assert error(AWQ(clip=False), x, task) < error(RoundToNearest(), x, task)


def both_roundings(method: RoundingMethod, x: torch.Tensor, task: LinearToRound) -> float:
    """Mean square change of the output by a method's weights and by inputs of 8 bits."""
    result = method.round(task)
    spread = torch.ones(NUM_COLUMNS)
    if result.input_scale is not None and task.input_scale is not None:
        spread = result.input_scale[task.input_scale.producers]
    output = round_rows(x / spread) @ result.weight.dequantized().T
    return float((output - x @ task.weight.T).square().mean())


W8 = RoundingScheme(8, -1, True, torch.float32)


def test_smoothquant_beats_both_roundings_without_smoothing() -> None:
    x = inputs()
    task = layer(x, W8)
    searched = both_roundings(SmoothQuant(), x, task)
    assert searched < 0.4 * both_roundings(RoundToNearest(), x, task)
    assert searched <= min(both_roundings(SmoothQuant(alpha), x, task) for alpha in (0.3, 0.5, 0.9)) * 1.02
    assert SmoothQuant().round(task).note
    assert SmoothQuant(0.5).round(task).note == "alpha 0.5"


def test_smoothquant_takes_the_solution_where_no_alpha_is_right() -> None:
    x = inputs(num_rows=2000)
    x[:, 3::16] *= torch.where(random(5, 2000, 1).abs() > 2.0, 30.0, 0.3)  # large now and then
    task = layer(x, W8)
    assert SmoothQuant().round(task).note == "solved"
    alphas = [both_roundings(SmoothQuant(step / 10), x, task) for step in range(3, 10)]
    assert both_roundings(SmoothQuant(), x, task) < 0.9 * min(alphas)


def test_smoothquant_makes_up_for_the_rounding_of_weights() -> None:
    x = inputs()
    task = replace(layer(x, W8), input_scale=None)  # nothing to smooth by
    assert error(SmoothQuant(), x, task) < 0.6 * error(RoundToNearest(), x, task)
    assert both_roundings(SmoothQuant(), x, task) < both_roundings(RoundToNearest(), x, task)


def test_smoothquant_gives_features_of_one_producer_one_scale() -> None:
    x = inputs()
    shared = InputScale(torch.arange(NUM_COLUMNS) % 64, 64, lambda wanted: wanted)
    task = replace(layer(x, W8), input_scale=shared)
    result = SmoothQuant().round(task)
    assert result.input_scale is not None
    assert result.input_scale.shape == (64,)
    assert both_roundings(SmoothQuant(), x, task) < both_roundings(RoundToNearest(), x, task)


@pytest.mark.parametrize("num_rows", [2, 600])
def test_smoothquant_takes_features_that_are_never_used_or_never_change(num_rows: int) -> None:
    x = inputs(num_rows=num_rows)
    x[:, 5], x[:, 6] = 0.0, 3.0
    result = SmoothQuant().round(layer(x, W8))
    assert bool(result.weight.dequantized().isfinite().all())
    assert result.input_scale is None or bool((result.input_scale.isfinite() & (result.input_scale != 0)).all())


def test_smoothquant_is_not_misled_by_one_huge_token() -> None:
    """Its features say nothing about those of all others; the largest input of each is its own."""
    x = inputs()
    x[299] = 300.0 * x[299].flip(0)  # none of the sampled rows
    task = layer(x, W8)
    others = torch.cat([x[:299], x[300:]])
    assert both_roundings(SmoothQuant(), others, task) < 0.9 * both_roundings(SmoothQuant(0.5), others, task)
