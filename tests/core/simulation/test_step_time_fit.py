"""The fit finds costs that it was given, and its errors are those of the definition."""

from __future__ import annotations

import random

import pytest

from tokenloom.errors import ConfigError
from tokenloom.executors.step_time import StepCosts, StepShape
from tokenloom.simulation.step_time_fit import MeasuredStep, fit_costs, fit_error, medians

COSTS = StepCosts(step_s=8e-3, prefill_token_s=3e-5, decode_row_s=5e-5, kv_byte_s=4e-13, attention_pair_s=1.4e-9)


def shapes(count: int) -> list[StepShape]:
    draw = random.Random(1)
    found = []
    for _ in range(count):
        chunk = draw.choice([0, 0, 16, 256, 2048])
        found.append(StepShape(chunk, draw.randrange(64), draw.randrange(1, 10**10), chunk * draw.randrange(1, 5000)))
    return found


def test_costs_are_found_again() -> None:
    found = fit_costs([MeasuredStep(shape, COSTS.duration_s(shape)) for shape in shapes(50)])
    for name in StepCosts.model_fields:
        assert getattr(found, name) == pytest.approx(getattr(COSTS, name), rel=1e-6), name


def test_noise_moves_them_little() -> None:
    draw = random.Random(2)
    steps = [MeasuredStep(shape, COSTS.duration_s(shape) * draw.uniform(0.95, 1.05)) for shape in shapes(500)]
    found = fit_costs(steps)
    assert found.step_s == pytest.approx(COSTS.step_s, rel=0.05)
    assert found.prefill_token_s == pytest.approx(COSTS.prefill_token_s, rel=0.05)
    error = fit_error(found, steps)
    assert error.num_steps == 500
    assert 0.01 < error.mean < 0.05
    assert error.mean < error.p90
    assert abs(error.total) < 0.02


def test_no_cost_is_negative() -> None:
    """Rows that seem to save time are fitted with 0, and the rest anew."""
    steps = [
        MeasuredStep(shape, COSTS.duration_s(shape) - 2 * COSTS.decode_row_s * shape.num_decode_rows)
        for shape in shapes(60)
    ]
    found = fit_costs(steps)
    assert found.decode_row_s == 0.0
    assert found.step_s > 0.0


def test_what_never_happened_costs_nothing() -> None:
    steps = [MeasuredStep(StepShape(0, rows, rows * 1000, 0), 1.0 + 0.1 * rows) for rows in range(1, 30)]
    found = fit_costs(steps)
    assert (found.prefill_token_s, found.attention_pair_s) == (0.0, 0.0)
    assert fit_error(found, steps).mean < 1e-9


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="too few"):
        fit_costs([MeasuredStep(shape, 1.0) for shape in shapes(4)])


def test_errors_are_those_of_the_definition() -> None:
    costs = StepCosts(step_s=1.0, prefill_token_s=0.0, decode_row_s=0.0, kv_byte_s=0.0)
    shape = StepShape(0, 1, 1, 0)
    error = fit_error(costs, [MeasuredStep(shape, 2.0), MeasuredStep(shape, 0.5)])
    assert error.mean == pytest.approx((0.5 + 1.0) / 2)
    assert error.total == pytest.approx((2.0 - 2.5) / 2.5)


def test_medians_drop_what_the_machine_did_in_between() -> None:
    shape, other = StepShape(0, 1, 1, 0), StepShape(0, 2, 1, 0)
    steps = [MeasuredStep(shape, t) for t in (1.0, 1.1, 50.0)] + [MeasuredStep(other, 3.0)]
    assert medians(steps) == [MeasuredStep(shape, 1.1), MeasuredStep(other, 3.0)]
