"""Bad words: from strings to the token sequences that must not appear."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.errors import RequestError
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["encode_bad_words"]


def encode_bad_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word as it stands at the start of a text, and behind a space.

    Sequences that end in another one are left out: where they complete, the other one does, too.

    Raises:
        RequestError: a word has no tokens, or cannot be encoded.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip(" ")
        variants = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in (bare, f" {bare}") if bare]
        if not all(variants) or not variants:
            raise RequestError(f"bad_words: {word!r} has no tokens in this model; leave it out", "bad_words")
        found.update(dict.fromkeys(variants))
    return tuple(ids for ids in found if not any(ids[start:] in found for start in range(1, len(ids))))
