"""Values of the wrong type: the message says how the value is written, and what it advises is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError


class Keys(BaseModel):
    """A command's keys, one of each kind of value."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    count: int | None = 3
    share: float | None = None
    is_on: bool | None = None
    ids: tuple[int, ...] | None = None
    table: dict[int, float] | None = Field(default=None, examples=[{5: -1.5}])
    whole: int = 1
    settings: dict[str, dict[str, Any]] = Field(default={}, examples=[{"one": {"size": 3}}])
    words: tuple[str, ...] = ()
    output: str | None = "x"
    folder: Path | None = Path()
    label: str = "x"


NULLABLE = ("count", "share", "is_on", "ids", "table", "output", "folder")


def refusal(override: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose_config([override], command=Keys)
    return str(caught.value)


@pytest.mark.parametrize("key", NULLABLE)
@pytest.mark.parametrize("word", ["None", "none"])
def test_none_is_told_to_be_written_null_which_is_accepted(key: str, word: str) -> None:
    assert "write null for none" in refusal(f"{key}={word}")
    assert getattr(compose_config([f"{key}=null"], command=Keys).extras_of(Keys), key) is None


@pytest.mark.parametrize("word", ["null", "NULL", "Null"])
def test_null_is_read_in_any_case(word: str) -> None:
    assert compose_config([f"output={word}"], command=Keys).extras_of(Keys).output is None


@pytest.mark.parametrize("override", ["output=./None", "output=Nonesuch", "label=None"])
def test_other_text_is_taken_as_it_is(override: str) -> None:
    key, _, text = override.partition("=")
    assert getattr(compose_config([override], command=Keys).extras_of(Keys), key) == text


@pytest.mark.parametrize("override", ["trace.file=None", "model.revision=none"])
def test_text_of_the_engine_is_no_none_either(override: str) -> None:
    assert f"{override}: write null for none" in refusal(override)


def test_null_is_not_advised_where_it_is_refused() -> None:
    assert "null" not in refusal("whole=None")
    assert "null" not in refusal("count=x")


@pytest.mark.parametrize("override", ["scheduler.max_chunk_tokens=None", "cache.num_blocks=none"])
def test_keys_of_plugins_advise_null_too(override: str) -> None:
    key = override.partition("=")[0]
    assert f"{override}: must be a valid integer; write null for none" in refusal(override)
    compose_config([f"{key}=null"])


def test_a_keyword_in_python_is_told_of_none() -> None:
    with pytest.raises(ConfigError, match="write None without quotes for none"):
        compose_config(keywords={"num_blocks": "None"})
    with pytest.raises(ConfigError, match="write None without quotes for none"):
        compose_config(keywords={"revision": "None"})


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("settings=one", "settings=one: must be a mapping from text to mapping from text to any value, as in "),
        ("settings={one:3}", "must be a mapping, as in settings={one:{size:3}}"),
        ("table=3", "must be a mapping from whole number to number or null, as in table={5:-1.5}"),
        ("table={a:1}", "its key a must be a valid integer"),
        ("words=3", "words=3: must be a list of text"),
        ("ids=3", "ids=3: must be a list of whole number or null"),
    ],
)
def test_lists_and_mappings_are_shown_as_they_are_written(override: str, expected: str) -> None:
    message = refusal(override)
    assert expected in message
    for word in ("dictionary", "tuple"):
        assert word not in message


@pytest.mark.parametrize("advised", ["settings={one:{size:3}}", "table={5:-1.5}"])
def test_what_is_shown_is_accepted(advised: str) -> None:
    compose_config([advised], command=Keys)
