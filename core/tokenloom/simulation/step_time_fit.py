"""Fits the costs of steps to measured ones, and says how well they predict others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from tokenloom.errors import ConfigError
from tokenloom.executors.step_time import CostBracket, StepCosts, StepShape

__all__ = ["FitError", "MeasuredStep", "averages", "fit_costs", "fit_error"]

_Matrix = npt.NDArray[np.float64]

_FIRST_TOKEN_KNOT, _FIRST_ROW_KNOT = 64, 64
_DENSE_ROW_KNOTS = (1, 2, 4, 5, 8, 9, 16)
"""Drafts under verification are rows, too, and what they bring depends on what the first few cost. That is no straight
line: kernels take rows by blocks of 4 or 8, and one row alone may have kernels of its own."""
_NUM_ROUNDS = 10
"""Of weighing anew; a few suffice."""
_LEAST_SHARE = 0.1
"""Weights of a step are those of no less than this share of its measured time."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """What a step did, and the seconds that it took."""

    shape: StepShape
    duration_s: float


@dataclass(frozen=True, slots=True)
class FitError:
    """How far predictions are off.

    Attributes:
        num_steps: steps compared.
        mean, p90: of |predicted - measured| / measured over steps.
        total: (sum predicted - sum measured) / sum measured.
    """

    num_steps: int
    mean: float
    p90: float
    total: float


def averages(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """One step for each shape, with the mean of its times.

    Left out are times above twice their median: then the machine did something else. What is a little late now and
    then belongs to the mean, and a long run has it, too.
    """
    by_shape: dict[StepShape, list[float]] = {}
    for step in steps:
        by_shape.setdefault(step.shape, []).append(step.duration_s)
    return [
        MeasuredStep(shape, fmean(time_s for time_s in times if time_s <= 2.0 * median(times)))
        for shape, times in by_shape.items()
    ]


def fit_costs(steps: Sequence[MeasuredStep]) -> StepCosts:
    """Least squares with costs of at least 0, where the variance of a step's time is in proportion to that time.

    Weights follow what is predicted, not what was measured: those of the measured times would favour steps that came
    out short by chance, and all predictions would be too low. With these, the sum of the predictions is that of the
    measured times.

    Raises:
        ConfigError: too few different steps to tell the costs apart.
    """
    token_knots = _knots(_FIRST_TOKEN_KNOT, [step.shape.num_prefill_tokens for step in steps])
    row_knots = _row_knots([step.shape.num_decode_rows for step in steps])
    rows = np.array([_counts(step.shape, token_knots, row_knots) for step in steps], np.float64)  # [steps, costs]
    if len({step.shape for step in steps}) < rows.shape[-1]:
        raise ConfigError(f"{len(steps)} steps are too few to fit {rows.shape[-1]} costs; give calibrate more seconds")
    times = np.array([step.duration_s for step in steps])
    predicted = times
    for _ in range(_NUM_ROUNDS):
        weights = 1.0 / np.sqrt(np.maximum(predicted, _LEAST_SHARE * times))
        found = _non_negative(rows * weights[:, None], times * weights)
        predicted = rows @ found
    step_s, kv_byte_s, attention_pair_s, *each_s = found.tolist()
    token_s, row_s = each_s[: len(token_knots) + 1], each_s[len(token_knots) + 1 :]
    return StepCosts(
        step_s=step_s,
        prefill_token_s=token_s[0],
        decode_row_s=row_s[0],
        kv_byte_s=kv_byte_s,
        attention_pair_s=attention_pair_s,
        prefill_brackets=_brackets(token_knots, token_s[1:]),
        decode_brackets=_brackets(row_knots, row_s[1:]),
    )


def _knots(first: int, counts: Sequence[int]) -> list[int]:
    """Where the cost of one more may change: `first`, and 4 times as many each, as far as half of what was measured."""
    most = max(counts, default=0)
    return [knot for knot in (first * 4**power for power in range(10)) if 2 * knot <= most]


def _row_knots(counts: Sequence[int]) -> list[int]:
    """The dense ones where there are steps of just so many rows, and of more; `_knots` beyond."""
    measured, most = set(counts), max(counts, default=0)
    return [knot for knot in _DENSE_ROW_KNOTS if knot < most and knot in measured] + _knots(_FIRST_ROW_KNOT, counts)


def _brackets(knots: Sequence[int], each_s: Sequence[float]) -> tuple[CostBracket, ...]:
    return tuple(CostBracket(above=knot, each_s=cost_s) for knot, cost_s in zip(knots, each_s, strict=True))


def _counts(shape: StepShape, token_knots: Sequence[int], row_knots: Sequence[int]) -> tuple[float, ...]:
    """One line of the linear system: tokens and rows come last, so many in each bracket."""
    return (
        1.0,
        shape.num_kv_bytes,
        shape.num_attention_pairs,
        *_in_brackets(shape.num_prefill_tokens, token_knots),
        *_in_brackets(shape.num_decode_rows, row_knots),
    )


def _in_brackets(count: int, knots: Sequence[int]) -> Iterator[int]:
    for low, high in pairwise((0, *knots, max(count, *knots, 0))):
        yield min(max(count - low, 0), high - low)


def _non_negative(rows: _Matrix, values: _Matrix) -> _Matrix:
    """Least squares with nothing below 0: what would be negative is left out, the most negative first."""
    # Columns differ by many orders of magnitude.
    scales = np.maximum(np.abs(rows).max(axis=0), np.finfo(float).tiny)
    active = [index for index in range(rows.shape[1]) if rows[:, index].any()]
    costs = np.zeros(rows.shape[1])
    while active:
        found = np.linalg.lstsq(rows[:, active] / scales[active], values, rcond=None)[0]
        if found.min() >= 0.0:
            costs[active] = found / scales[active]
            break
        del active[int(found.argmin())]
    return costs


def fit_error(costs: StepCosts, steps: Sequence[MeasuredStep]) -> FitError:
    """Compares predictions with measurements. `steps` is not empty."""
    measured = np.array([step.duration_s for step in steps])
    predicted = np.array([costs.duration_s(step.shape) for step in steps])
    relative = np.abs(predicted - measured) / measured
    return FitError(
        num_steps=len(steps),
        mean=float(relative.mean()),
        p90=float(np.percentile(relative, 90)),
        total=float((predicted.sum() - measured.sum()) / measured.sum()),
    )
