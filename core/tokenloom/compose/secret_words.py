"""Keys whose values may be secrets: what is said of an override, right or wrong, must not show them."""

from __future__ import annotations

import difflib
import re

__all__ = ["may_hold_secret", "shown_override"]

_SECRET = re.compile("key|secret|passw", re.IGNORECASE)
_FILE = re.compile("file$|path$|dir$", re.IGNORECASE)
_NEAR = 0.7
_WORD = re.compile(r"[A-Za-z_]\w*")


def may_hold_secret(key: str) -> bool:
    """Whether a dotted key, perhaps a misspelt one, is named like what holds secrets."""
    words = _WORD.findall(key)
    # A mere "key" could be anything's, but for a server it is an API key.
    is_of_server = bool(words) and (len(words) == 1 or _likeness(words[0], "server") > _NEAR)
    return any(_is_secret_word(word) and (is_of_server or word.lower() != "key") for word in words)


def shown_override(raw: str) -> str:
    """An override as messages may show it, whether it can be parsed or not."""
    key, equals, value = raw.partition("=")
    if not equals:
        # Perhaps a colon was written for it.
        key = re.split(r"[:\s\[{]", raw, maxsplit=1)[0]
        return f"{key}..." if key != raw and may_hold_secret(key) else raw
    if may_hold_secret(key):
        return f"{key}=***"
    inner = [word for word in re.findall(r"(\w+)\s*:", value) if _is_secret_word(word)] if "{" in value else []
    return f"{key}={{{inner[0]}: ***, ...}}" if inner else raw


def _is_secret_word(word: str) -> bool:
    if _FILE.search(word):
        return False
    return bool(_SECRET.search(word)) or _likeness(word, "api_keys") > _NEAR


def _likeness(word: str, model: str) -> float:
    return difflib.SequenceMatcher(None, word.lower(), model).ratio()
