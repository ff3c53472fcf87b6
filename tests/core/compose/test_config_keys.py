"""How keys are described to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from tokenloom.compose.config_keys import describe_field, document_model, near_keys, takes_text
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.settings_validation import misreads_bool


class Sample(BaseModel, arbitrary_types_allowed=True):
    count: Annotated[int, Field(ge=1, lt=9)] = Field(default=4, description="How many.")
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    mode: Literal["a", "b"] | None = "a"
    depth: Literal[1, 2] = 1
    depth_or_flag: Literal[1, 2] | bool = 1
    is_on: bool = False
    names: list[str] = []
    pairs: tuple[int, ...] = ()
    path: Path | None = None
    table: dict[int, float] = {}
    nested_table: Mapping[str, dict[str, Any]] | None = None
    bare: dict = {}  # type: ignore[type-arg]
    sequence: Sequence[int] = ()
    must: int
    part: PluginChoice | None = None
    nested: PluginChoice


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("count", "whole number >= 1 and < 9"),
        ("share", "number > 0 and <= 1 or null"),
        ("mode", "one of a, b or null"),
        ("depth", "one of 1, 2"),
        ("is_on", "true or false"),
        ("names", "list of text"),
        ("pairs", "list of whole number"),
        ("path", "path or null"),
        ("table", "mapping from whole number to number"),
        ("nested_table", "mapping from text to mapping from text to any value or null"),
        ("bare", "mapping"),
        ("sequence", "list of whole number"),
    ],
)
def test_describe_field_puts_the_type_in_words(name: str, text: str) -> None:
    assert describe_field(f"x.{name}", Sample.model_fields[name]).type == text


def test_describe_field_tells_default_choices_and_text() -> None:
    count = describe_field("x.count", Sample.model_fields["count"])
    assert (count.key, count.default, count.is_required, count.choices, count.doc) == (
        "x.count",
        4,
        False,
        (),
        "How many.",
    )
    assert describe_field("x.mode", Sample.model_fields["mode"]).choices == ("a", "b")
    assert describe_field("x.must", Sample.model_fields["must"]).is_required


def test_document_model_leaves_nested_plugins_out() -> None:
    keys = [doc.key for doc in document_model("x", Sample)]
    assert "x.count" in keys
    assert "x.nested" not in keys


def test_takes_text_holds_for_text_and_paths_only() -> None:
    assert [name for name, info in Sample.model_fields.items() if takes_text(info)] == ["path"]


def test_misreads_bool_finds_integer_literals() -> None:
    assert [name for name, info in Sample.model_fields.items() if misreads_bool(info)] == ["depth"]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("cache.max_num_seqs", "scheduler.max_num_seqs"),
        ("seed", "engine.seed"),
        ("cache.blok_size", "cache.block_size"),
        ("max_num_seq", "scheduler.max_num_seqs"),
    ],
)
def test_near_keys_finds_the_meant_one(key: str, expected: str) -> None:
    known = ["cache.block_size", "cache.num_blocks", "scheduler.max_num_seqs", "engine.seed"]
    assert near_keys(key, known)[0] == expected


def test_near_keys_of_nonsense_is_empty() -> None:
    assert near_keys("zzz.qqq", ["cache.block_size", "engine.seed"]) == []
