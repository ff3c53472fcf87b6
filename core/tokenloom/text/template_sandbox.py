"""The sandbox that chat templates run in: Jinja's immutable one, with the functions of templates and limits on size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sized
from datetime import datetime
from typing import Any, NoReturn, final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["TemplateSandbox"]

_MAX_ITEMS = 1 << 26
"""Characters of a text, entries of a list: far beyond any prompt, well within memory."""

_MAX_INTEGER_BITS = 1 << 14
"""More than Python writes out as decimal digits."""


@final
class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles and renders the templates of checkpoints, which are foreign code.

    What a template writes, and what it makes with `+`, `*` and `**`, is limited in size. How long it computes is not.

    Args:
        now: the time that `strftime_now` tells.
    """

    # Also keeps the compiler from working such expressions out beforehand.
    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda time_format: now().strftime(time_format)

    def render(self, template: jinja2.Template, values: dict[str, Any]) -> str:
        """Renders a template of this sandbox. Raises whatever the template does, and SecurityError at a limit."""
        return self.concat(template.generate(values))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        is_number = isinstance(left, int) and isinstance(right, int)
        if is_number and _num_bits(operator, left, right) > _MAX_INTEGER_BITS:
            raise SecurityError(f"{operator} would make an integer of more than {_MAX_INTEGER_BITS} bits")
        if not is_number and _num_items(operator, left, right) > _MAX_ITEMS:
            raise SecurityError(f"{operator} would make a value of more than {_MAX_ITEMS} items")
        return super().call_binop(context, operator, left, right)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:  # Jinja joins with this whatever a template, a block or a macro writes
        kept, num_chars = [], 0
        for part in parts:
            kept.append(part)
            num_chars += len(part)
            if num_chars > _MAX_ITEMS:
                raise SecurityError(f"it writes more than {_MAX_ITEMS} characters")
        return "".join(kept)


def _num_bits(operator: str, left: int, right: int) -> int:
    if operator == "**":
        return left.bit_length() * max(right, 0)
    return left.bit_length() + right.bit_length() if operator == "*" else max(left.bit_length(), right.bit_length())


def _num_items(operator: str, left: Any, right: Any) -> int:
    if operator == "*":
        sized, count = (left, right) if isinstance(left, Sized) else (right, left)
        return len(sized) * count if isinstance(sized, Sized) and isinstance(count, int) else 0
    return len(left) + len(right) if isinstance(left, Sized) and isinstance(right, Sized) else 0


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
