"""What a GGUF file says of a model, as families read it."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.models.gguf_layout import GGUFFacts, shortest_decimal, swa_layer_types


def facts(**metadata: object) -> GGUFFacts:
    values = {f"some.{key}": value for key, value in metadata.items()}
    return GGUFFacts(Fields({"general.name": "x", **values}, Path("m.gguf")), "some", {"a.weight"})


def float32(value: float) -> float:
    number: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return number


@pytest.mark.parametrize(
    "value", [1e-6, 1e-5, 0.1, 1.1902381, 500000.0, 1e6, -2.5, 0.0, 3.0, 16777216.0, 1.1754944e-38]
)
def test_shortest_decimal_is_what_was_stored(value: float) -> None:
    assert shortest_decimal(float32(value)) == value


@pytest.mark.parametrize("value", [1e300, -1e39, math.inf, -math.inf])
def test_shortest_decimal_keeps_what_float32_cannot_hold(value: float) -> None:
    assert shortest_decimal(value) == value


def test_shortest_decimal_keeps_nan() -> None:
    assert math.isnan(shortest_decimal(math.nan))


def test_shortest_decimal_never_changes_the_float32_value() -> None:
    for index in range(2000):
        stored = float32(math.sin(index) * 10.0 ** (index % 60 - 30))
        assert float32(shortest_decimal(stored)) == stored


def test_facts_add_the_prefix_and_name_the_whole_key() -> None:
    assert facts(size=3).integer("size") == 3
    assert facts(size=3).all_keys() == ("size",)
    assert facts().number("eps", 1e-6) == 1e-6
    assert facts().value("size") is None
    assert facts().has_tensor("a.weight")
    assert not facts().has_tensor("b.weight")
    with pytest.raises(ModelError, match=r"m\.gguf lacks the key 'some\.size'"):
        facts().integer("size")
    with pytest.raises(ModelError, match=r"'some\.size' must be a string"):
        facts(size=3).text("size")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (None, "SFSFS"),
        (1, "FFFFF"),
        (3, "SSFSS"),
        (9, "SSSSS"),
        ([True, False, False, True, True], "SFFSS"),
    ],
)
def test_layer_types_follow_a_period_or_a_list(pattern: object, expected: str) -> None:
    metadata = {} if pattern is None else {"attention.sliding_window_pattern": pattern}
    types = swa_layer_types(facts(**metadata), 5, default_period=2)
    assert "".join({"sliding_attention": "S", "full_attention": "F"}[name] for name in types) == expected


@pytest.mark.parametrize("pattern", [[True, False], [], [1, 0, 1, 0, 1]])
def test_layer_types_of_another_length_are_refused(pattern: object) -> None:
    with pytest.raises(ModelError, match=r"'some\.attention\.sliding_window_pattern' must be a period or 5 times"):
        swa_layer_types(facts(**{"attention.sliding_window_pattern": pattern}), 5, default_period=2)
