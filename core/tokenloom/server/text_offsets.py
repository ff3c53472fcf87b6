"""Where each token's text begins in the text that a client gets, which is not always where its bytes would."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import final

from tokenloom.text.tokenizer import Tokenizer

__all__ = ["TextOffsets"]


@final
class TextOffsets:
    """Counts the characters of one text token by token, as `IncrementalDetokenizer` writes them.

    A character that several tokens share belongs to the first of them; the others begin behind it. So does what is no
    UTF-8, which is shown as U+FFFD.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool,
        start: int = 0,
        starts_text: bool = False,
        known_text: str | None = None,
    ) -> None:
        """
        Args:
            tokenizer: gives each token's bytes.
            skip_special_tokens: the text leaves special tokens out.
            start: characters before the first token.
            starts_text: no text comes before the tokens, so that some tokenizers take a space from their beginning.
            known_text: the whole text, where there is one already, as of a prompt: it shows which special tokens it
                holds, since a tokenizer may put others around it.
        """
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._strips = starts_text and tokenizer.strips_leading_space
        self._known_text = known_text
        self._num_chars = start
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, token_ids: Iterable[int]) -> list[int]:
        """Offsets of the next tokens, in characters."""
        offsets: list[int] = []
        for token_id in token_ids:
            held_back = self._characters.getstate()[0].decode(errors="replace")
            offsets.append(self._num_chars + len(held_back))
            self._num_chars += len(self._characters.decode(self._bytes_of(token_id)))
        return offsets

    def _bytes_of(self, token_id: int) -> bytes:
        piece = self._tokenizer.token_bytes(token_id)
        if token_id in self._tokenizer.special_token_ids and not self._is_shown(piece):
            return b""
        if self._strips and piece:
            self._strips = False
            return self._tokenizer.first_token_bytes(token_id)
        return piece

    def _is_shown(self, special: bytes) -> bool:
        if self._known_text is None:
            return not self._skips
        return self._known_text.startswith(special.decode(errors="replace"), self._num_chars)
