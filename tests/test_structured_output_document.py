"""docs/structured_output.md: its code runs, and what it lists is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.byte_level_vocabulary import CHATML, byte_level_metadata
from tests.core.structured.walking import compiled
from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.server.tools import REASONING_PARSERS, TOOL_PARSERS
from tokenloom.structured import grammar_text, schema_check
from tokenloom.text import build_tokenizer

DOCUMENT = (Path(__file__).resolve().parent.parent / "docs" / "structured_output.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for block in CODE:
        exec(compile(block, "docs/structured_output.md", "exec"), {})
    *_, colour, date = capsys.readouterr().out.splitlines()
    assert colour in ("red", "green", "blue")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)


def test_every_format_that_is_listed_is_kept() -> None:
    metadata = byte_level_metadata()
    source = TokenizerSource("gguf", Path("tiny.gguf"), metadata, CHATML)
    tokenizer = build_tokenizer(source, len(metadata["tokenizer.ggml.tokens"]))
    listed = re.search(r"`format` \(([^)]*)\)", DOCUMENT)
    assert listed is not None
    for name in re.split(r",\s+", listed[1]):
        compiled(GrammarSpec.json_schema({"type": "string", "format": name}), tokenizer)


def test_limits_are_those_of_the_code() -> None:
    text = " ".join(DOCUMENT.split())
    assert f"at most {grammar_text.MAX_TEXT_CHARS:,} characters, regexes {schema_check.MAX_PATTERN_CHARS:,}" in text
    assert f"choices {grammar_text._MAX_CHOICES:,} options" in text
    assert f"`multipleOf` is at most {schema_check._MAX_MULTIPLE:,}" in text


def test_every_kind_and_parser_is_described() -> None:
    assert all(f"| `{name}" in DOCUMENT for name in ("json_object()", "json_schema(", "regex(", "choice(", "lark("))
    assert all(f"| `{name}` |" in DOCUMENT for name in TOOL_PARSERS)
    assert all(f"`{name}`" in DOCUMENT for name in REASONING_PARSERS)
