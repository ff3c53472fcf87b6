"""Sweeps: which overrides are expanded, in which order, and what is left to the composer."""

from __future__ import annotations

import pytest

from tokenloom.compose.sweep import SweepPoint, expand_sweep


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
