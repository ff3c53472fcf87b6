"""Chat templates: from messages to the text, and the token ids, that the model was trained on.

A template comes with a checkpoint, so it is foreign code: it runs in Jinja's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn, final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenloom.errors import RequestError
from tokenloom.text.chat_messages import checked_messages, map_strings, strings_in
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate"]

# What an expression in a template can raise besides Jinja's own errors.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


@final
class ChatTemplate:
    """One template, ready to render. Broken or missing templates are reported at the first use, as RequestError.

    Args:
        source: Jinja source; None for a model without a template.
        named_tokens: variables such as `bos_token` and `eos_token`.
        now: the time that `strftime_now` tells.
    """

    def __init__(
        self,
        source: str | None,
        named_tokens: dict[str, str] | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._source = source
        self._defaults: dict[str, Any] = {
            "bos_token": "",
            "eos_token": "",
            "tools": None,
            "documents": None,
            **(named_tokens or {}),
        }
        self._now = now

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer, source: str | None = None) -> ChatTemplate:
        """The model's own template, or `source` in its place."""
        return cls(tokenizer.chat_template if source is None else source, dict(tokenizer.named_tokens))

    def render(self, messages: object, *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """Renders a conversation.

        Args:
            messages: a list of `{"role": ..., "content": ...}`.
            add_generation_prompt: end with the header of the assistant's turn.
            variables: whatever else the template reads (`tools`, `enable_thinking`, ...).

        Raises:
            RequestError: no template, bad messages, or the template refuses them.
        """
        return self._render(checked_messages(messages), add_generation_prompt, variables)

    def encode_chat(
        self, tokenizer: Tokenizer, messages: object, *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Renders a conversation and encodes it.

        Only the template's own control tokens count: what messages and variables spell stays text. No BOS is added,
        since templates write it themselves.

        Args and Raises: as `render`, and those of `Tokenizer.encode`.
        """
        conversation = checked_messages(messages)
        texts = list(strings_in([conversation, variables]))
        guard = tokenizer.guard
        if not any(map(guard.strings.are_risked_by, texts)):
            text = self._render(conversation, add_generation_prompt, variables)
            return tokenizer.encode(text, add_special_tokens=False)
        marks = guard.strings.marks([*texts, self._source or ""])

        def broken(text: str) -> str:
            return guard.strings.broken(text, marks)

        marked = map_strings(conversation, broken), map_strings(variables, broken)
        return tokenizer.encode_marked(self._render(marked[0], add_generation_prompt, marked[1]), marks)

    def _render(self, messages: list[dict[str, Any]], add_generation_prompt: bool, variables: dict[str, Any]) -> str:
        values = {**self._defaults, **variables, "messages": messages, "add_generation_prompt": add_generation_prompt}
        template = self._template
        try:
            return template.render(values)
        except _TEMPLATE_FAULTS as error:
            detail = str(error) or type(error).__name__
            raise RequestError(f"the chat template cannot render these messages: {detail}", param="messages") from error

    @cached_property
    def _template(self) -> jinja2.Template:
        if self._source is None:
            raise RequestError(
                "this model has no chat template; use completion (generate) with a prompt of your own, or pass a "
                "template as Jinja source"
            )
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = self._strftime_now
        try:
            return environment.from_string(self._source)
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(f"the chat template is not valid Jinja: line {error.lineno}: {error.message}") from error

    def _strftime_now(self, time_format: str) -> str:
        return self._now().strftime(time_format)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML; a prompt needs the plain characters.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@final
class _GenerationBlock(Extension):
    """`{% generation %} ... {% endgeneration %}` marks words of the assistant for training; here the body counts."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        # A scope of its own: what is set in the block does not hold after it.
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)
