"""unguarded: the same class as `dataclass` makes, but for the guard and the time that it takes."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict, dataclass, field, fields, replace

import pytest

from tokenloom.unguarded import unguarded


@unguarded
@dataclass(frozen=True, slots=True)
class Light:
    name: str
    count: int
    pair: tuple[int, int] = (1, 2)
    other: Light | None = None


def test_only_type_checkers_refuse_a_write() -> None:
    made = Light("a", 3)
    assert type(made) is Light
    made.count = 4  # type: ignore[misc]
    assert made == Light("a", 4)
    with pytest.raises(AttributeError):
        made.unknown = 1  # type: ignore[attr-defined]


def test_arguments_are_taken_by_place_by_name_and_by_default() -> None:
    assert asdict(Light("a", 3)) == {"name": "a", "count": 3, "pair": (1, 2), "other": None}
    assert Light(count=3, name="a", pair=(5, 6)) == Light("a", 3, (5, 6))
    for wrong in ({}, {"name": "a"}, {"name": "a", "count": 1, "size": 2}):
        with pytest.raises(TypeError):
            Light(**wrong)  # type: ignore[arg-type]


def test_object_can_be_compared_hashed_copied_replaced_and_shown() -> None:
    made = Light("a", 3, other=Light("b", 4))
    assert {made: 1}[Light("a", 3, other=Light("b", 4))] == 1
    assert made != Light("a", 4)
    for twin in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert twin == made
        assert type(twin) is Light
    assert replace(made, count=9) == Light("a", 9, other=Light("b", 4))
    assert repr(Light("a", 3)) == "Light(name='a', count=3, pair=(1, 2), other=None)"
    assert [item.name for item in fields(Light)] == ["name", "count", "pair", "other"]


def test_default_factory_is_refused() -> None:
    with pytest.raises(AssertionError, match="values has a factory"):

        @unguarded
        @dataclass(frozen=True, slots=True)
        class Unfit:
            values: list[int] = field(default_factory=list)
