"""The scales of the least expected rounding error: the error's formula, its slope, and what it does on layers."""

from __future__ import annotations

import math

import pytest
import torch

from tests.plugins.quant.checkpoint_packing import random
from tokenloom.quantization.method import InputScale
from tokenloom.quantization.rounded_weight import RoundingScheme, round_rows, round_to_nearest
from tokenloom.quantization.smoothing_scales import SmoothingModel

NUM_COLUMNS, NUM_ROWS = 96, 40
SCHEME = RoundingScheme(8, -1, True, torch.float32)
EACH_FEATURE = InputScale(torch.arange(NUM_COLUMNS), NUM_COLUMNS, lambda wanted: wanted)
SHARED = InputScale(torch.arange(NUM_COLUMNS) % 32, 32, lambda wanted: wanted)


def rows(seed: int = 0, num_rows: int = 800) -> torch.Tensor:
    """Features of unlike kinds: some always large, some large now and then, which no one alpha is right for."""
    x = random(seed, num_rows, NUM_COLUMNS)
    x[:, ::17] *= 20.0
    x[:, 5::17] *= torch.where(random(seed + 1, num_rows, 1).abs() > 2.0, 40.0, 0.5)
    return x


def weight() -> torch.Tensor:
    sizes = random(4, NUM_COLUMNS).exp()
    return random(3, NUM_ROWS, NUM_COLUMNS) * sizes


def model(x: torch.Tensor, form: InputScale = EACH_FEATURE) -> SmoothingModel:
    return SmoothingModel.of(form, x, weight(), x.square().mean(dim=0))


def true_error(x: torch.Tensor, spread: torch.Tensor) -> float:
    output = round_rows(x / spread) @ round_to_nearest(weight() * spread, SCHEME).dequantized().T
    return float((output - x @ weight().T).square().sum(dim=1).mean())


def best_of_alphas(x: torch.Tensor, form: InputScale) -> torch.Tensor:
    """The paper's scale of the alpha whose true error is least: [P]."""
    inputs, weights = form.largest(x.abs().amax(dim=0)), form.largest(weight().abs().amax(dim=0))
    scales = [inputs ** (step / 20) / weights ** (1 - step / 20) for step in range(21)]
    return min(scales, key=lambda scale: true_error(x, scale[form.producers]))


@pytest.mark.parametrize("form", [EACH_FEATURE, SHARED], ids=["each", "shared"])
def test_error_and_slope_are_those_of_the_formula(form: InputScale) -> None:
    x, point = rows(), random(8, form.num_producers)
    wide, u = x.double(), point.double().requires_grad_()
    scaled, grown = wide / u.exp()[form.producers], weight().double() * u.exp()[form.producers]
    inputs = scaled.abs().amax(dim=1).square().mean() * grown.square().sum() / 127**2
    weights = grown.abs().amax(dim=1).square().sum() * scaled.square().mean(dim=0).sum() / 127.5**2
    expected = (inputs + weights).log()
    expected.backward()
    error, slope = model(x, form).log_error(point)
    assert error == pytest.approx(expected.item(), abs=1e-4)
    assert u.grad is not None
    torch.testing.assert_close(slope.double(), u.grad, rtol=1e-3, atol=1e-5)


def test_expected_error_is_what_rounding_gives() -> None:
    x = rows()
    for spread in (torch.ones(NUM_COLUMNS), best_of_alphas(x, EACH_FEATURE)):
        expected = math.exp(model(x).log_error(spread.log())[0]) / 12
        assert true_error(x, spread) == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("form", [EACH_FEATURE, SHARED], ids=["each", "shared"])
def test_solved_scales_beat_the_best_alpha_on_other_rows(form: InputScale) -> None:
    x, others = rows(), rows(seed=20)
    start = best_of_alphas(x, form)
    solved = model(x, form).solved(start)
    assert solved.shape == (form.num_producers,)
    assert true_error(others, solved[form.producers]) < 0.9 * true_error(others, start[form.producers])


def test_there_is_one_optimum() -> None:
    x = rows()
    found = [model(x).solved(start) for start in (best_of_alphas(x, EACH_FEATURE), random(5, NUM_COLUMNS).exp())]
    first, second = (model(x).log_error(each.log())[0] for each in found)
    assert first == pytest.approx(second, abs=0.02)


@pytest.mark.parametrize("num_rows", [1, 300])
def test_zero_and_constant_features_give_numbers(num_rows: int) -> None:
    x = rows(num_rows=num_rows)
    x[:, 3], x[:, 4] = 0.0, 2.5
    columns = weight()
    columns[:, 3], columns[:, 6] = 0.0, 0.0
    for form in (EACH_FEATURE, SHARED):
        found = SmoothingModel.of(form, x, columns, x.square().mean(dim=0)).solved(torch.ones(form.num_producers))
        assert bool((found > 0).all())
        assert bool(found.isfinite().all())


@pytest.mark.parametrize("is_weight", [False, True])
def test_nothing_but_zeros_gives_numbers(is_weight: bool) -> None:
    x = rows(num_rows=9) * (1.0 if is_weight else 0.0)
    columns = weight() * (0.0 if is_weight else 1.0)
    found = SmoothingModel.of(EACH_FEATURE, x, columns, x.square().mean(dim=0)).solved(torch.ones(NUM_COLUMNS))
    assert bool((found > 0).all())
    assert bool(found.isfinite().all())
