"""Text from tokens as they come: whole characters only, stop strings found across token borders."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.text.stop_matcher import StopMatcher
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "TextDelta"]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What a push adds.

    Attributes:
        text: text that may be shown now; later pushes never change it.
        stop: the stop string that was found, or None.
        num_tokens: output tokens, counted from the first push, that the text so far came from; after a stop those up to
            and including the token in which the stop string's last character lies.
    """

    text: str
    stop: str | None
    num_tokens: int


@final
class IncrementalDetokenizer:
    """The text of one output, token by token.

    Without a stop, all deltas joined equal `tokenizer.decode` of all tokens (with the same `continues`), however they
    were pushed. What is held back: an incomplete character, and the longest end of the text that is the beginning of a
    stop string.

    Args:
        tokenizer: gives each token's bytes.
        stop: strings that end the output; the one that ends first wins, among equal ends the longest.
        include_stop_str: the text ends with the stop string instead of before it.
        skip_special_tokens: control tokens add no text.
        min_tokens: text of the first so many tokens is not searched for stop strings.
        continues: the output follows a prompt that has text, so a space at its start is a part of the whole text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        *,
        include_stop_str: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        continues: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._matcher = StopMatcher(stop, include_stop_str=include_stop_str) if stop else None
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_next_space = tokenizer.strips_leading_space and not continues
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._has_ended = False

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Takes the next output tokens. Tokens after a stop string are ignored; no push may follow one."""
        assert not self._has_ended, f"push of {len(token_ids)} tokens after the end, at token {self._num_tokens}"
        shown: list[str] = []
        for token_id in token_ids:
            self._num_tokens += 1
            text = self._characters.decode(self._bytes_of(token_id))
            stop = self._show(text, shown) if text else None
            if stop is not None:
                self._has_ended = True
                return TextDelta("".join(shown), stop, self._num_tokens)
        return TextDelta("".join(shown), None, self._num_tokens)

    def finish(self) -> TextDelta:
        """Ends an output that met no stop string: what was held back is shown, half a character as U+FFFD."""
        assert not self._has_ended, f"finish after the end, at token {self._num_tokens}"
        self._has_ended = True
        shown: list[str] = []
        stop = self._show(self._characters.decode(b"", final=True), shown)
        if stop is None and self._matcher is not None:
            shown.append(self._matcher.flush())
        return TextDelta("".join(shown), stop, self._num_tokens)

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._hidden:
            return b""
        data = self._tokenizer.token_bytes(token_id)
        if self._strip_next_space and data:
            self._strip_next_space = False
            return self._tokenizer.first_token_bytes(token_id)
        return data

    def _show(self, text: str, shown: list[str]) -> str | None:
        if self._matcher is None or self._num_tokens <= self._min_tokens:
            shown.append(text)
            return None
        visible, stop = self._matcher.feed(text)
        shown.append(visible)
        return stop
