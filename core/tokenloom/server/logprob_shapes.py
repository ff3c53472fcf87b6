"""Log-probabilities in the two shapes of the API, with the bytes of each token. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import msgspec

from tokenloom.batch import TokenLogprobs
from tokenloom.server.text_offsets import TextOffsets
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["ChatLogprobs", "CompletionLogprobs", "LogprobWriter", "PromptLogprob"]

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class TopLogprob(msgspec.Struct):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    """A token of a chat's reply."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """What a choice or chunk of a chat holds under `logprobs`."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """What a choice or chunk of a completion holds under `logprobs`: lists with one element for each token.

    `bytes` is not OpenAI's: a token that is half a character has no text of its own.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]
    bytes: list[list[int]]


class PromptLogprob(msgspec.Struct):
    """A token at a position of the prompt, as vLLM's `prompt_logprobs` writes it; rank 1 is the most likely one."""

    logprob: float
    rank: int | None
    decoded_token: str


@final
class LogprobWriter:
    """Writes tokens as text. Log-probabilities are those of the model's own distribution, before any sampling option.

    Args:
        tokenizer: knows the tokens' bytes.
        skip_special_tokens: whether the text leaves special tokens out; lists of tokens hold them all the same.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens

    def prompt_offsets(self, text: str) -> TextOffsets:
        """Offsets within a prompt that is echoed as `text`."""
        return TextOffsets(self._tokenizer, skip_special_tokens=self._skips_special, starts_text=True, known_text=text)

    def output_offsets(self, prompt_token_ids: Sequence[int], start: int) -> TextOffsets:
        """Offsets within an output, behind `start` characters of an echoed prompt."""
        has_text = self._tokenizer.has_text(prompt_token_ids, skip_special_tokens=self._skips_special)
        return TextOffsets(
            self._tokenizer, skip_special_tokens=self._skips_special, start=start, starts_text=not has_text
        )

    def chat(self, entries: Sequence[TokenLogprobs]) -> ChatLogprobs:
        """The shape of chats."""
        return ChatLogprobs([self._chat_entry(entry) for entry in entries])

    def completion(
        self,
        entries: Sequence[TokenLogprobs | None],
        token_ids: Sequence[int],
        num_top: int,
        offsets: TextOffsets,
    ) -> CompletionLogprobs:
        """The shape of completions.

        Args:
            entries: one for each token, None for the first of a prompt.
            token_ids: the tokens.
            num_top: how many others were asked for; 0 leaves them out.
            offsets: of the text that the tokens are of; it goes on behind them.
        """
        pieces = [self._tokenizer.token_bytes(token_id) for token_id in token_ids]
        return CompletionLogprobs(
            tokens=[_completion_token(piece) for piece in pieces],
            token_logprobs=[None if entry is None else _finite(entry.logprob) for entry in entries],
            top_logprobs=None if num_top == 0 else [None if e is None else self._by_token(e) for e in entries],
            text_offset=offsets.take(token_ids),
            bytes=[list(piece) for piece in pieces],
        )

    def prompt(self, entries: Sequence[TokenLogprobs | None]) -> list[dict[str, PromptLogprob] | None]:
        """The prompt's, by token id; null for the first token, before which there is nothing."""
        return [None if entry is None else self._prompt_entry(entry) for entry in entries]

    def _prompt_entry(self, entry: TokenLogprobs) -> dict[str, PromptLogprob]:
        found = {
            str(token_id): PromptLogprob(_finite(logprob), rank, self._token(token_id, logprob)[0])
            for rank, (token_id, logprob) in enumerate(entry.top, start=1)
        }
        own = PromptLogprob(_finite(entry.logprob), entry.rank, self._token(entry.token_id, entry.logprob)[0])
        found.setdefault(str(entry.token_id), own)
        return found

    def _chat_entry(self, entry: TokenLogprobs) -> ChatLogprob:
        top = [TopLogprob(*self._token(token_id, logprob)) for token_id, logprob in entry.top]
        return ChatLogprob(*self._token(entry.token_id, entry.logprob), top)

    def _token(self, token_id: int, logprob: float) -> tuple[str, float, list[int]]:
        piece = self._tokenizer.token_bytes(token_id)
        return _text(piece) or _escaped(piece), _finite(logprob), list(piece)

    def _by_token(self, entry: TokenLogprobs) -> dict[str, float]:
        found: dict[str, float] = {}
        # The chosen token is always there; where two tokens have one text, the more likely one is meant.
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            found.setdefault(_completion_token(self._tokenizer.token_bytes(token_id)), _finite(logprob))
        return found


def _text(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


def _completion_token(piece: bytes) -> str:
    text = _text(piece)
    return f"bytes:{_escaped(piece)}" if text is None else text


def _escaped(piece: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in piece)


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB) if logprob == logprob else LEAST_LOGPROB
