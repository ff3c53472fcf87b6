"""Keys whose values may be secrets: what is said of an override, right or wrong, must not show them."""

from __future__ import annotations

import difflib
import re

__all__ = ["may_hold_secret", "shown_override"]

_SECRET = re.compile("key|secret|passw", re.IGNORECASE)
_FILE = re.compile("file$|path$|dir$", re.IGNORECASE)
_MODEL_WORD, _NEAR = "api_keys", 0.7
_WORD = re.compile(r"[A-Za-z_]\w*")


def may_hold_secret(key: str) -> bool:
    """Whether a dotted key, perhaps a misspelt one, is named like what holds secrets."""
    return any(_is_secret_word(word) for word in _WORD.findall(key))


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
    near = difflib.SequenceMatcher(None, word.lower(), _MODEL_WORD).ratio()
    return bool(_SECRET.search(word)) or near > _NEAR
