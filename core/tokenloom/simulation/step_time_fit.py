"""Fits the costs of steps to measured ones, and says how well they predict others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.executors.step_time import StepCosts, StepShape

__all__ = ["FitError", "MeasuredStep", "fit_costs", "fit_error", "medians"]


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


def medians(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """One step for each shape, with the median time: what else the machine did in between drops out."""
    by_shape: dict[StepShape, list[float]] = {}
    for step in steps:
        by_shape.setdefault(step.shape, []).append(step.duration_s)
    return [MeasuredStep(shape, median(times)) for shape, times in by_shape.items()]


def fit_costs(steps: Sequence[MeasuredStep]) -> StepCosts:
    """Least squares of the relative errors, with costs of at least 0.

    A cost that would be negative is left out, the most negative first, and the others are fitted anew.

    Raises:
        ConfigError: too few different steps to tell the costs apart.
    """
    names = list(StepCosts.model_fields)
    if len({step.shape for step in steps}) < len(names):
        raise ConfigError(f"{len(steps)} steps are too few to fit {len(names)} costs; give calibrate more seconds")
    times = np.array([step.duration_s for step in steps])
    rows = np.array([step.shape.as_row() for step in steps]) / times[:, None]  # [steps, costs]
    # Columns differ by many orders of magnitude.
    scales = np.maximum(np.abs(rows).max(axis=0), np.finfo(float).tiny)
    active = [index for index in range(len(names)) if rows[:, index].any()]
    while True:
        found = np.linalg.lstsq(rows[:, active] / scales[active], np.ones(len(steps)), rcond=None)[0]
        if found.min() >= 0.0:
            break
        del active[int(found.argmin())]
    costs: Mapping[str, float] = {names[i]: float(value / scales[i]) for i, value in zip(active, found, strict=True)}
    return StepCosts(**{name: costs.get(name, 0.0) for name in names})


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
