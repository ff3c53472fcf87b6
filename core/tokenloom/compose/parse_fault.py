"""Says in plain words why an override cannot be parsed; the parser's own words name its tokens."""

from __future__ import annotations

import re

__all__ = ["parse_fault"]

_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w./-]*")
_CLOSING = {"[": "]", "{": "}", "(": ")"}
_UNKNOWN_FUNCTION = re.compile(r"Unknown function '([^']*)'")
_STRANGE_TEXT = re.compile(r"(?:at:|input) '(.)")


def parse_fault(override: str, parser_message: str) -> str:
    """The reason why Hydra's grammar refuses `override`, e.g. "a comma has no value after it".

    Args:
        override: key=value, which was refused.
        parser_message: what the parser said, read only where the text itself shows nothing.
    """
    key, _, value = override.partition("=")
    if not _KEY.fullmatch(key.strip()):
        return f"{key!r} is no key"
    fault = _unbalanced(value) or _lonely_comma(value)
    if fault is not None:
        return fault
    function, strange = _UNKNOWN_FUNCTION.search(parser_message), _STRANGE_TEXT.search(parser_message)
    if function is not None:
        return f"there is no function {function[1]!r}"
    if strange is not None and strange[1] not in "[{":
        return f"{strange[1]!r} has no meaning there"
    return "a list is written [a,b], a mapping {key:value}"


def _unbalanced(value: str) -> str | None:
    """What is opened and not closed, or the other way round."""
    expected: list[tuple[str, str]] = []
    for mark in _without_quoted(value):
        if mark in _CLOSING:
            expected.append((mark, _CLOSING[mark]))
        elif mark in _CLOSING.values() and (not expected or expected.pop()[1] != mark):
            return f"{mark!r} closes nothing"
        elif mark in "'\"":
            return f"the quote {mark} is not closed"
    return f"{expected[-1][0]!r} is not closed" if expected else None


def _lonely_comma(value: str) -> str | None:
    text = re.sub(r"\s", "", _without_quoted(value))
    if re.search(r"(?:^|[\[{(,]),", text):
        return "a comma has no value before it"
    return "a comma has no value after it" if re.search(r",(?:$|[\]})])", text) else None


def _without_quoted(value: str) -> str:
    """The text with each closed quotation as one letter, so that what stands in it counts for nothing."""
    return re.sub(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", "q", value)
