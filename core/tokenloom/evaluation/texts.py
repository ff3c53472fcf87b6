"""Texts to score: a file of the user's, or the built-in one, which every Python brings.

The built-in text is the language reference behind `help()`, the topics of `pydoc_data`. It belongs to evaluation alone:
whoever calibrates with text that Python ships takes the docstrings of the standard library's modules.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tokenloom.errors import ConfigError

__all__ = ["BUILT_IN", "EvaluationText", "read_file", "read_text"]

BUILT_IN = "Python's help topics"
"""What results call the built-in text."""


@dataclass(frozen=True, slots=True)
class EvaluationText:
    """A text, what results call it, and the SHA-256 of its UTF-8: equal digests, comparable results."""

    name: str
    text: str

    @property
    def digest(self) -> str:
        """SHA-256 in hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_text(path: Path | None) -> EvaluationText:
    """Reads a file, or the built-in text for None.

    Raises:
        ConfigError: the file cannot be read, is no UTF-8 or is empty; or this Python has no help topics.
    """
    if path is None:
        return EvaluationText(BUILT_IN, _help_topics())
    return EvaluationText(path.name, read_file(path, f"text={path}", "text to score"))


def read_file(path: Path, setting: str, wanted: str) -> str:
    """Reads a file of the user's, which `setting` names and which should hold what is `wanted`.

    Raises:
        ConfigError: it cannot be read, is no UTF-8 or is empty.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{setting}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{setting} is not text in UTF-8: {error}") from error
    if not text.strip():
        raise ConfigError(f"{setting} is empty; name a file with {wanted}")
    return text


def _help_topics() -> str:
    """All topics in alphabetical order. Some contain others: of equal paragraphs only the first one stays."""
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise ConfigError(
            "this Python comes without pydoc_data, the built-in text; name a file to score by text=FILE"
        ) from error
    paragraphs = (part.strip("\n") for name in sorted(topics) for part in topics[name].split("\n\n"))
    return "\n\n".join(dict.fromkeys(part for part in paragraphs if part))
