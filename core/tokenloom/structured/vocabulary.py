"""A model's tokens as bytes, in the form that llguidance takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import final

from llguidance import LLTokenizer, TokenizerWrapper

from tokenloom.errors import RequestError
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["TokenVocabulary", "library_tokenizer", "token_vocabulary"]

# No UTF-8 text holds this byte, and the library marks special tokens with it.
_NEVER_IN_TEXT = b"\xff"


@dataclass(frozen=True, slots=True)
class TokenVocabulary:
    """What a grammar must know of a model's tokens; plain data, which can be sent to another process.

    Attributes:
        tokens: per token id the bytes that it adds to the text, or the name of a special token; empty for a token that
            no text holds (padded rows, bytes outside UTF-8).
        special_token_ids: tokens that no text matches, by id.
        eos_token_ids: tokens that end a text; some of the special ones.
        digest: of all of the above; vocabularies are compared by it.
    """

    tokens: tuple[bytes, ...] = field(compare=False)
    special_token_ids: tuple[int, ...] = field(compare=False)
    eos_token_ids: tuple[int, ...] = field(compare=False)
    digest: str

    def __repr__(self) -> str:
        return f"TokenVocabulary({len(self.tokens)} tokens, {self.digest[:12]})"


def token_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]) -> TokenVocabulary:
    """The vocabulary of a model with `vocab_size` rows.

    Raises:
        RequestError: no token can end a text.
    """
    ends = tuple(sorted({token_id for token_id in eos_token_ids if 0 <= token_id < vocab_size}))
    if not ends:
        raise RequestError("structured output needs an end-of-sequence token, and this model has none")
    special = tuple(sorted({token_id for token_id in tokenizer.special_token_ids if token_id < vocab_size} | {*ends}))
    num_known = min(vocab_size, tokenizer.vocab_size)
    found = [tokenizer.token_bytes(token_id) for token_id in range(num_known)]
    tokens = (*(b"" if _NEVER_IN_TEXT in data else data for data in found), *[b""] * (vocab_size - num_known))
    digest = hashlib.sha256(repr((tokens, special, ends)).encode()).hexdigest()
    return TokenVocabulary(tokens, special, ends, digest)


@lru_cache(maxsize=4)
def library_tokenizer(vocabulary: TokenVocabulary) -> LLTokenizer:
    """The library's form of a vocabulary; the last few are kept."""
    return LLTokenizer(
        TokenizerWrapper(_Tokens(vocabulary)),
        n_vocab=len(vocabulary.tokens),
        eos_token=list(vocabulary.eos_token_ids),
    )


@final
class _Tokens:
    """What the library asks of a tokenizer: attributes of these names, and a call that encodes."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id: int | None = None
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_token_ids

    def __call__(self, text: str | bytes) -> list[int]:
        raise AssertionError(f"nothing here needs the library to encode {text[:80]!r}")
