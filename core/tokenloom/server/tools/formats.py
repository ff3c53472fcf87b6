"""Which parser a model needs: named in the configuration, or told from its chat template; and how to build it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.grammar_spec import Thoughts
from tokenloom.server.tools.interface import ReasoningParser, ToolParser
from tokenloom.server.tools.json_calls import HERMES, LLAMA3, JsonCallParser
from tokenloom.server.tools.pythonic_calls import PythonicCallParser
from tokenloom.server.tools.reasoning import THINK_CLOSE, THINK_OPEN, ThinkParser
from tokenloom.text.tokenizer import Tokenizer

__all__ = [
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "ParserChoice",
    "build_reasoning_parser",
    "build_tool_parser",
    "choose_reasoning_parser",
    "choose_tool_parser",
    "marks_of",
    "new_call_id",
    "special_marks",
    "thoughts_before",
]

TOOL_PARSERS = ("none", "hermes", "llama3_json", "pythonic")
"""Names that `server.tool_parser` takes, beside "auto"."""
REASONING_PARSERS = ("none", "qwen3", "deepseek_r1")
"""Names that `server.reasoning_parser` takes, beside "auto"."""


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """A parser's name, and why it was chosen, for the start-up message."""

    name: str
    reason: str


def choose_tool_parser(setting: str, chat_template: str | None) -> ParserChoice:
    """The tool parser for a model.

    Args:
        setting: "auto" or one of `TOOL_PARSERS`.
        chat_template: the template in use, or None.

    Raises:
        ConfigError: there is no such parser.
    """
    template = chat_template or ""
    if setting != "auto":
        return _named("tool_parser", setting, TOOL_PARSERS)
    if "tools" not in template:
        return ParserChoice("none", "the chat template takes no tools")
    if HERMES.open_mark in template:
        return ParserChoice("hermes", f"the chat template writes {HERMES.open_mark}")
    if LLAMA3.open_mark in template or '{"name": function name, "parameters":' in template:
        return ParserChoice("llama3_json", "the chat template asks for calls as Llama 3 writes them")
    if "[func_name1(" in template:
        return ParserChoice("pythonic", "the chat template asks for calls as a list in Python")
    return ParserChoice("none", "the chat template takes tools, but its way to write calls is not known here")


def choose_reasoning_parser(setting: str, chat_template: str | None) -> ParserChoice:
    """The reasoning parser for a model; arguments and errors as in `choose_tool_parser`."""
    template = chat_template or ""
    if setting != "auto":
        return _named("reasoning_parser", setting, REASONING_PARSERS)
    if THINK_OPEN in template or THINK_CLOSE in template:
        return ParserChoice("qwen3", f"the chat template writes {THINK_OPEN} or {THINK_CLOSE}")
    return ParserChoice("none", "the chat template knows no thoughts")


def build_tool_parser(
    name: str, tool_names: Collection[str], make_id: Callable[[], str] | None = None
) -> ToolParser | None:
    """A parser for one reply; None for "none".

    Args:
        name: one of `TOOL_PARSERS`.
        tool_names: of the tools that the request offers.
        make_id: draws the id of each call; random ones by default.
    """
    make_id = make_id or new_call_id
    match name:
        case "hermes":
            return JsonCallParser(HERMES, tool_names, make_id)
        case "llama3_json":
            return JsonCallParser(LLAMA3, tool_names, make_id)
        case "pythonic":
            return PythonicCallParser(tool_names, make_id)
    assert name == "none", f"no tool parser {name!r}"
    return None


def build_reasoning_parser(name: str, prompt: str) -> ReasoningParser | None:
    """A parser for one reply; None for "none".

    Args:
        name: one of `REASONING_PARSERS`.
        prompt: the rendered prompt, or its last characters: its template may have opened the thoughts, or closed them.
    """
    if name == "none":
        return None
    return ThinkParser(starts_inside=thoughts_before(name, prompt) == "begun")


def thoughts_before(reasoning_parser: str, prompt: str) -> Thoughts:
    """Which thoughts a reply to this prompt may begin with, for the `thoughts` of a `GrammarSpec`.

    Args:
        reasoning_parser, prompt: as in `build_reasoning_parser`.
    """
    assert reasoning_parser in REASONING_PARSERS, f"no reasoning parser {reasoning_parser!r}"
    ending = prompt.rstrip()
    if reasoning_parser == "none" or ending.endswith(THINK_CLOSE):
        return "none"
    # Older templates of DeepSeek R1 do not open the thoughts, and the model leaves the first mark out.
    return "begun" if ending.endswith(THINK_OPEN) or reasoning_parser == "deepseek_r1" else "possible"


def marks_of(tool_parser: str, reasoning_parser: str) -> tuple[str, ...]:
    """Strings that both parsers look for.

    Where one of them is a special token of the vocabulary, the text shows it only with `skip_special_tokens=False`.
    """
    calls = {"hermes": ("<tool_call>", "</tool_call>"), "llama3_json": ("<|python_tag|>",)}
    thoughts = () if reasoning_parser == "none" else (THINK_OPEN, THINK_CLOSE)
    return (*calls.get(tool_parser, ()), *thoughts)


def special_marks(marks: Collection[str], tokenizer: Tokenizer) -> frozenset[str]:
    """Those of `marks` that are special tokens of the vocabulary."""
    return frozenset(marks) & {tokenizer.id_to_token(token_id) for token_id in tokenizer.special_token_ids}


def new_call_id() -> str:
    """A random id, e.g. "call_3f0c5b1a9d2e4c7f8a6b5d4e"."""
    return f"call_{secrets.token_hex(12)}"


def _named(key: str, setting: str, names: tuple[str, ...]) -> ParserChoice:
    if setting not in names:
        raise ConfigError(
            f"server.{key} must be auto or one of {', '.join(names)}, got {setting!r}.{did_you_mean(setting, names)}"
        )
    return ParserChoice(setting, f"server.{key}={setting}")
