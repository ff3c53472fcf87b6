"""Generated load, and arrivals that are stretched."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import mean, stdev

import pytest

from tokenloom.simulation.load_generation import LoadShape, generate_load
from tokenloom.simulation.timed_request import TimedRequest, mean_rate, scale_arrivals


@pytest.mark.parametrize(("burstiness", "cv"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gaps_have_the_rate_and_the_burstiness_asked_for(burstiness: float, cv: float) -> None:
    requests = generate_load(LoadShape(rate=5.0, burstiness=burstiness), 20_000, seed=3)
    gaps = [later.arrival_s - earlier.arrival_s for earlier, later in pairwise(requests)]
    assert mean(gaps) == pytest.approx(0.2, rel=0.06)
    assert stdev(gaps) / mean(gaps) == pytest.approx(cv, rel=0.06)
    assert requests[0].arrival_s == 0.0


def test_lengths_have_the_mean_and_the_spread_asked_for() -> None:
    alike = generate_load(LoadShape(prompt_tokens=40, output_tokens=7), 50, seed=0)
    assert {(r.num_prompt_tokens, r.num_output_tokens, r.arrival_s) for r in alike} == {(40, 7, 0.0)}
    spread = generate_load(LoadShape(prompt_tokens=400, output_tokens=100, length_spread=0.5), 20_000, seed=0)
    for lengths, expected in (
        ([float(r.num_prompt_tokens) for r in spread], 400),
        ([float(r.num_output_tokens) for r in spread], 100),
    ):
        assert mean(lengths) == pytest.approx(expected, rel=0.03)
        assert stdev(lengths) / mean(lengths) == pytest.approx(0.5, rel=0.05)
        assert min(lengths) >= 1


def test_prefixes_are_shared_by_number() -> None:
    shape = LoadShape(prompt_tokens=10, shared_prefix_tokens=32, num_prefixes=3)
    requests = generate_load(shape, 100, seed=1)
    assert {r.shared_ids for r in requests} == {(0,), (1,), (2,)}
    assert {(r.num_prompt_tokens, r.shared_block_tokens) for r in requests} == {(42, 32)}


def test_equal_seeds_give_equal_load_and_lengths_do_not_move_arrivals() -> None:
    shape = LoadShape(rate=2.0, length_spread=1.0)
    assert generate_load(shape, 30, seed=1) == generate_load(shape, 30, seed=1) != generate_load(shape, 30, seed=2)
    longer = generate_load(replace(shape, prompt_tokens=5000), 30, seed=1)
    assert [r.arrival_s for r in longer] == [r.arrival_s for r in generate_load(shape, 30, seed=1)]


def test_scaling_keeps_the_pattern_and_changes_the_rate() -> None:
    requests = [TimedRequest(time_s, 1, 1) for time_s in (0.0, 1.0, 1.0, 8.0)]
    scaled = scale_arrivals(requests, rate=3.0)
    assert [r.arrival_s for r in scaled] == pytest.approx([0.0, 0.125, 0.125, 1.0])
    assert mean_rate(scaled) == pytest.approx(3.0)
    at_once = [TimedRequest(0.0, 1, 1)] * 3
    assert scale_arrivals(at_once, rate=3.0) == at_once
    assert mean_rate(at_once) is None
