"""Plain values become a Config, or an error in the words of whoever wrote them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, final

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tokenloom.errors import ConfigError
from tokenloom.settings_validation import lists_to_tuples, validated


@final
class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    depth: int = 0


@final
class Example(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    size: Annotated[int, Field(ge=1)]
    words: tuple[str, ...] = ()
    pairs: tuple[tuple[int, str], ...] | None = None
    maybe: Annotated[tuple[int, ...], Field(min_length=1)] | None = None
    level: Literal[1, 2] = 1
    rate: int | str | None = None
    names: list[str] = []
    part: Part = Part()

    @model_validator(mode="after")
    def _check(self) -> Example:
        if self.size == 13:
            raise ValueError("Size 13 brings bad luck")
        return self


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("words", ["a", "b"], ("a", "b")),
        ("words", [], ()),
        ("pairs", [[1, "a"], [2, "b"]], ((1, "a"), (2, "b"))),
        ("pairs", None, None),
        ("maybe", [3], (3,)),
        ("names", ["a"], ["a"]),
    ],
)
def test_lists_are_taken_for_tuples(name: str, value: Any, expected: Any) -> None:
    assert getattr(validated(Example, {"size": 1, name: value}, "example"), name) == expected


def test_only_fields_are_turned() -> None:
    assert lists_to_tuples(Example, {"other": [1], "names": [1]}) == {"other": [1], "names": [1]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 0}, "size: must be greater than or equal to 1, got 0"),
        ({"size": True}, "size: must be a valid integer, got True"),
        ({}, "the setting 'size' must be given"),
        ({"size": 1, "word": []}, "there is no setting 'word', only size, words, pairs"),
        ({"size": 1, "word": []}, "Did you mean 'words'?"),
        ({"size": 1, "words": ["a", 2]}, "words.1: must be a valid string, got 2"),
        ({"size": 1, "pairs": [[1, "a", "b"]]}, "pairs.0"),
        ({"size": 1, "pairs": [[1, 2]]}, "pairs.0.1: must be a valid string, got 2"),
        ({"size": 1, "level": True}, "level: must not be true or false, got True"),
        ({"size": 1, "rate": 1.5}, "rate: must be a valid integer, got 1.5; rate: must be a valid string, got 1.5"),
        ({"size": 1, "part": {"deep": 1}}, "there is no setting 'part.deep'"),
        ({"size": 13}, "the settings: size 13 brings bad luck"),
        ({"size": "x", "level": 3}, "size: must be a valid integer, got 'x'; level: must be 1 or 2, got 3"),
    ],
)
def test_every_fault_is_named_with_its_key_and_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validated(Example, values, "kind=name")
    assert str(caught.value).startswith("kind=name: ")
    assert message in str(caught.value)
