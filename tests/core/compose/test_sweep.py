"""Sweeps: which overrides are expanded, in which order, and what is left to the composer."""

from __future__ import annotations

import pytest

from tokenloom.compose.sweep import SweepPoint, expand_sweep
from tokenloom.errors import ConfigError


def test_no_sweep_is_one_point_without_changes() -> None:
    overrides = ["scheduler=fcfs", "cache.block_size=32"]
    assert expand_sweep(overrides) == [SweepPoint(tuple(overrides), ())]
    assert expand_sweep([]) == [SweepPoint((), ())]


def test_product_varies_the_last_sweep_fastest_and_names_what_changes() -> None:
    points = expand_sweep(["scheduler=fcfs,sjf", "model.dtype=float32", "cache=none,hash"])
    assert [point.changes for point in points] == [
        ("scheduler=fcfs", "cache=none"),
        ("scheduler=fcfs", "cache=hash"),
        ("scheduler=sjf", "cache=none"),
        ("scheduler=sjf", "cache=hash"),
    ]
    assert points[3].overrides == ("scheduler=sjf", "model.dtype=float32", "cache=hash")


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("cache.block_size=range(16,49,16)", ["16", "32", "48"]),
        ("cache.block_size=choice(8,16)", ["8", "16"]),
        ("cache.num_blocks=null,64", ["null", "64"]),
    ],
)
def test_hydras_grammar_says_what_a_sweep_is(override: str, values: list[str]) -> None:
    key = override.partition("=")[0]
    assert [point.overrides for point in expand_sweep([override])] == [(f"{key}={value}",) for value in values]


@pytest.mark.parametrize(
    "override",
    ["quant.skip=[a,b]", "x='a,b'", "output=a,b.json", "model=a,b", "model.source=a,b", "not an override", "x=[1,"],
)
def test_lists_texts_and_what_cannot_be_parsed_are_left_alone(override: str) -> None:
    assert expand_sweep([override], text_keys=("output",)) == [SweepPoint((override,), ())]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rate=1,1", "rate=1 is given twice"),
        ("rate=1,2,1.0", "rate=1.0 is given twice"),
        ("scheduler=choice(fcfs,sjf,fcfs)", "scheduler=fcfs is given twice"),
        ("cache.num_blocks=null,NULL", "cache.num_blocks=null is given twice"),
        ("x=[1,2],[1,2]", r"x=\[1,2\] is given twice"),
        ("x=a,'a'", "is given twice"),
        ("x=range(3,3)", "has no values"),
    ],
)
def test_a_value_given_twice_or_none_at_all_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand_sweep(["seed=1", override])
    assert len(expand_sweep(["x=1,true"])) == 2


@pytest.mark.parametrize(
    ("overrides", "points"),
    [
        (["rate=1,2", "rate=3"], [("rate=3",)]),
        (["rate=1,2", "limit=5", "+rate=3,4"], [("limit=5", "+rate=3"), ("limit=5", "+rate=4")]),
        (["rate=3", "rate=1,2"], [("rate=3", "rate=1"), ("rate=3", "rate=2")]),
        (["cache/eviction=lru,lfu", "cache.eviction=fifo"], [("cache.eviction=fifo",)]),
    ],
)
def test_of_two_sweeps_of_one_key_the_last_wins(overrides: list[str], points: list[tuple[str, ...]]) -> None:
    """The points of the first would be named by values that they do not run with."""
    assert [point.overrides for point in expand_sweep(overrides)] == points
