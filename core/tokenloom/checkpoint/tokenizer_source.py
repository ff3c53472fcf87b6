"""Where a checkpoint's tokenizer lives: the one thing that the text layer needs to know about a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["TokenizerSource"]


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """A tokenizer as it stands in the checkpoint, not yet built.

    Attributes:
        kind: "gguf" (everything is in `metadata`) or "hf" (a vocabulary and tokenizer_config.json under `path`).
        path: the .gguf file, or the Hugging Face folder; error messages name it.
        metadata: the GGUF metadata with its full keys (`tokenizer.ggml.tokens`, ...); empty for "hf".
        chat_template: the Jinja source of the default chat template, or None where the checkpoint has none.
    """

    kind: Literal["gguf", "hf"]
    path: Path
    metadata: Mapping[str, Any]
    chat_template: str | None
