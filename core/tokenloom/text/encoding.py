"""Encodes with the `tokenizers` library so that other threads go on meanwhile."""

from __future__ import annotations

import tokenizers

__all__ = ["encoding_of"]


def encoding_of(library: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    """What `library` makes of `text`, without special tokens around it."""
    # The library lets go of the interpreter in `encode_batch` only: `encode` stops every thread until it is done.
    (encoding,) = library.encode_batch([text], add_special_tokens=False)
    return encoding
