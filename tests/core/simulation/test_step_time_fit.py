"""The fit finds costs that it was given, and its errors are those of the definition."""

from __future__ import annotations

import random

import pytest

from tokenloom.errors import ConfigError
from tokenloom.executors.step_time import CostBracket, StepCosts, StepShape
from tokenloom.simulation.step_time_fit import MeasuredStep, averages, fit_costs, fit_error

COSTS = StepCosts(step_s=8e-3, prefill_token_s=3e-5, decode_row_s=5e-5, kv_byte_s=4e-13, attention_pair_s=1.4e-9)


NUMBERS = ("step_s", "prefill_token_s", "decode_row_s", "kv_byte_s", "attention_pair_s")


def shapes(count: int) -> list[StepShape]:
    draw = random.Random(1)
    found = []
    for _ in range(count):
        chunk = draw.choice([0, 0, 16, 100, 256, 700, 2048])
        found.append(StepShape(chunk, draw.randrange(64), draw.randrange(1, 10**10), chunk * draw.randrange(1, 5000)))
    return found


def test_costs_are_found_again() -> None:
    found = fit_costs([MeasuredStep(shape, COSTS.duration_s(shape)) for shape in shapes(200)])
    for name in NUMBERS:
        assert getattr(found, name) == pytest.approx(getattr(COSTS, name), rel=1e-6), name
    assert [each.above for each in found.prefill_brackets] == [64, 256, 1024]
    assert [each.each_s for each in found.prefill_brackets] == pytest.approx([COSTS.prefill_token_s] * 3, rel=1e-6)
    assert [each.above for each in found.decode_brackets] == [1, 2, 4, 5, 8, 9, 16]
    assert [each.each_s for each in found.decode_brackets] == pytest.approx([COSTS.decode_row_s] * 7, rel=1e-6)


def test_brackets_are_found_again() -> None:
    row_costs = {1: 9e-4, 2: 0.0, 4: 3e-4, 5: 0.0, 8: 5e-4, 9: 1e-4, 16: 2e-4}
    rows = tuple(CostBracket(above=above, each_s=each_s) for above, each_s in row_costs.items())
    tokens = (
        CostBracket(above=64, each_s=1e-5),
        CostBracket(above=256, each_s=9e-5),
        CostBracket(above=1024, each_s=0),
    )
    costs = COSTS.model_copy(update={"decode_brackets": rows, "prefill_brackets": tokens})
    found = fit_costs([MeasuredStep(shape, costs.duration_s(shape)) for shape in shapes(200)])
    assert [each.each_s for each in found.decode_brackets] == pytest.approx([*row_costs.values()], rel=1e-6, abs=1e-12)
    assert [each.each_s for each in found.prefill_brackets] == pytest.approx([1e-5, 9e-5, 0.0], rel=1e-6, abs=1e-12)


def test_brackets_are_as_many_as_was_measured() -> None:
    steps = [MeasuredStep(shape, COSTS.duration_s(shape)) for shape in shapes(200) if shape.num_decode_rows < 32]
    assert [each.above for each in fit_costs(steps).decode_brackets] == [1, 2, 4, 5, 8, 9, 16]
    gap = [step for step in steps if step.shape.num_decode_rows != 5]
    assert [each.above for each in fit_costs(gap).decode_brackets] == [1, 2, 4, 8, 9, 16]
    few = [step for step in steps if step.shape.num_decode_rows <= 4]
    assert [each.above for each in fit_costs(few).decode_brackets] == [1, 2]
    assert fit_costs([step for step in steps if step.shape.num_prefill_tokens < 128]).prefill_brackets == ()


def test_noise_that_only_delays_leaves_the_total_right() -> None:
    """Weights by measured times would make steps that were late count less, and all predictions too short."""
    draw = random.Random(4)
    steps = [MeasuredStep(shape, COSTS.duration_s(shape) * (1 + draw.expovariate(2.0))) for shape in shapes(400)]
    found = fit_costs(steps)
    assert fit_error(found, steps).total == pytest.approx(0.0, abs=1e-6)
    quiet = [MeasuredStep(step.shape, COSTS.duration_s(step.shape)) for step in steps]
    assert fit_error(found, quiet).total == pytest.approx(0.5, abs=0.08)


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


def test_averages_leave_out_what_the_machine_did_in_between() -> None:
    shape, other = StepShape(0, 1, 1, 0), StepShape(0, 2, 1, 0)
    steps = [MeasuredStep(shape, t) for t in (1.0, 1.4, 1.2, 50.0)] + [MeasuredStep(other, 3.0)]
    found = averages(steps)
    assert [step.shape for step in found] == [shape, other]
    assert [step.duration_s for step in found] == pytest.approx([1.2, 3.0])
