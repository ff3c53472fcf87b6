"""Bootstrap intervals: as wide as theory says, seeded, and weighted by what each unit counts."""

from __future__ import annotations

import numpy as np
import pytest

from tokenloom.evaluation.intervals import Bootstrap


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(1).normal(5.0, 2.0, size=400)
    low, high = Bootstrap(resamples=4000).interval(values.tolist(), [1.0] * 400) or (0, 0)
    half = 1.96 * float(values.std(ddof=1)) / 20
    assert low == pytest.approx(float(values.mean()) - half, abs=0.15 * half)
    assert high == pytest.approx(float(values.mean()) + half, abs=0.15 * half)


def test_units_weigh_what_they_count() -> None:
    low, high = Bootstrap().interval([10.0, 0.0], [10.0, 1000.0]) or (0, 0)
    assert (low, high) == (0.0, 1.0)
    # The mean of all units' ratios would often be above 0.1; that of all tokens together is not.
    narrow = Bootstrap().interval([1.0, *[0.0] * 9], [1.0, *[1000.0] * 9])
    assert narrow is not None
    assert narrow[1] < 0.01


def test_equal_seeds_give_equal_intervals_and_others_do_not() -> None:
    values, ones = [float(i * i) for i in range(20)], [1.0] * 20
    assert Bootstrap(seed=3).interval(values, ones) == Bootstrap(seed=3).interval(values, ones)
    assert Bootstrap(seed=3).interval(values, ones) != Bootstrap(seed=4).interval(values, ones)


def test_units_drawn_in_parts_are_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    values, ones = [float(i) for i in range(50)], [1.0] * 50
    whole = Bootstrap(resamples=1001).interval(values, ones)
    monkeypatch.setattr("tokenloom.evaluation.intervals._MOST_DRAWS", 120)
    assert Bootstrap(resamples=1001).interval(values, ones) == pytest.approx(whole)


def test_the_transform_applies_to_the_ratio() -> None:
    plain = Bootstrap().interval([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert plain is not None
    assert Bootstrap().interval([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], np.exp) == pytest.approx(np.exp(plain).tolist())


def test_one_unit_has_no_interval() -> None:
    assert Bootstrap().interval([1.0], [1.0]) is None
