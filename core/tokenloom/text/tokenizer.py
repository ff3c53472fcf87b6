"""The model's own tokenizer: text to ids and back, built from a GGUF file's metadata or a Hugging Face folder."""

from __future__ import annotations

import logging
import operator
import reprlib
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import SupportsIndex, final

from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.errors import ModelError, RequestError
from tokenloom.text.control_marks import ControlMarks
from tokenloom.text.encoding import encoding_of
from tokenloom.text.gguf_vocabulary import parts_from_gguf
from tokenloom.text.hf_tokenizer_files import parts_from_hf
from tokenloom.text.library_faults import library_faults_as
from tokenloom.text.special_guard import SpecialGuard
from tokenloom.text.tokenizer_parts import TokenizerParts

__all__ = ["Tokenizer", "build_tokenizer"]

_log = logging.getLogger(__name__)
_CANNOT_ENCODE = "this model's tokenizer cannot encode the text"


def build_tokenizer(source: TokenizerSource, vocab_size: int) -> Tokenizer:
    """Builds the tokenizer of a checkpoint.

    Args:
        source: where it is.
        vocab_size: rows of the model's embedding. It may exceed the tokens that exist (padded rows), not undercut them.

    Raises:
        ModelError: a file or key is missing, contradicts another one, or names a form that is not supported.
    """
    with library_faults_as(ModelError, f"{source.path}: the tokenizer is damaged, or of a kind that is not supported"):
        parts = parts_from_gguf(source) if source.kind == "gguf" else parts_from_hf(source)
    num_tokens = parts.library.get_vocab_size(with_added_tokens=False)
    if num_tokens > vocab_size:
        raise ModelError(
            f"{source.path}: the tokenizer has {num_tokens} tokens, but the model's embedding only {vocab_size} rows; "
            "they belong to different models"
        )
    return Tokenizer(parts, vocab_size)


@final
class Tokenizer:
    """Turns text into token ids and back. Made by `build_tokenizer`; safe to share between threads.

    Attributes:
        vocab_size: rows of the model's embedding: every id below it is legal. Ids of padded rows have no text.
        bos_token_id: the token that begins a sequence, or None.
        eos_token_ids: the tokens that end a reply.
        special_token_ids: the control tokens, which `skip_special_tokens` leaves out of the text.
        named_tokens: `bos_token`, `eos_token`, ... with their strings, as chat templates know them.
        chat_template: the model's own template (Jinja source), or None.
        strips_leading_space: decoding takes away the space at the start of a text, because encoding puts one there.
    """

    def __init__(self, parts: TokenizerParts, vocab_size: int) -> None:
        self._library = parts.library
        self._text_form = parts.text_form
        self._prefix_ids = list(parts.prefix_ids)
        self._suffix_ids = list(parts.suffix_ids)
        self.vocab_size = vocab_size
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.named_tokens = parts.named_tokens
        self.chat_template = parts.chat_template
        self.strips_leading_space = parts.text_form.strip_leading_space
        added = self._library.get_added_tokens_decoder()
        self._added_token_ids = frozenset(added)
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bytes_of: dict[int, bytes] = {}

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """What `encode` puts before a text: BOS, or nothing."""
        return tuple(self._prefix_ids)

    @cached_property
    def guard(self) -> SpecialGuard:
        """Encodes text whose control strings are not control tokens."""
        return SpecialGuard(self._library, self._text_form)

    def encode(self, text: str, *, add_special_tokens: bool = True, allow_special: bool = True) -> list[int]:
        """Encodes `text`.

        Args:
            text: any text that UTF-8 can hold.
            add_special_tokens: put BOS (and whatever else the model asks for) around it.
            allow_special: control strings in the text (`<|im_end|>`, ...) become control tokens; False keeps them text.

        Raises:
            RequestError: not a string, a lone surrogate, a token that the model has no embedding for, or text that the
                tokenizer cannot encode at all.
        """
        _check_text(text)
        with library_faults_as(RequestError, _CANNOT_ENCODE):
            ids = self._encode_special(text) if allow_special else self.guard.encode(text)
        if add_special_tokens:
            if ids and self.bos_token_id is not None and self._prefix_ids[-1:] == [self.bos_token_id] == ids[:1]:
                _log.warning(
                    "the text already begins with the BOS token %r and gets a second one; encode templated text with "
                    "add_special_tokens=False",
                    self.id_to_token(self.bos_token_id),
                )
            ids = [*self._prefix_ids, *ids, *self._suffix_ids]
        return self._checked_ids(ids)

    def encode_marked(self, text: str, marks: ControlMarks) -> list[int]:
        """Encodes template output whose user text was broken by `marks`. Adds no special tokens."""
        _check_text(text)
        with library_faults_as(RequestError, _CANNOT_ENCODE):
            ids = self.guard.encode_marked(text, marks)
        return self._checked_ids(ids)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True, continues: bool = False) -> str:
        """Decodes `ids`; bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: token ids of the model.
            skip_special_tokens: control tokens add no text.
            continues: the ids follow others that have text, so a space at their start is a part of the whole text.
                `decode(a + b) == decode(a) + decode(b, continues=has_text(a))`, if no character spans both.

        Raises:
            RequestError: something is no integer, or an id is out of range.
        """
        hidden = self.special_token_ids if skip_special_tokens else frozenset()
        shown = [token_id for token_id in _integers(ids) if token_id not in hidden]
        parts = [self.token_bytes(token_id) for token_id in shown]
        first = None if continues else next((index for index, part in enumerate(parts) if part), None)
        if first is not None:
            parts[first] = self.first_token_bytes(shown[first])
        return b"".join(parts).decode("utf-8", errors="replace")

    def has_text(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> bool:
        """Whether `ids` decode to any text. Looks no further than the first token that does."""
        hidden = self.special_token_ids if skip_special_tokens else frozenset()
        return any(token_id not in hidden and self.token_bytes(token_id) for token_id in map(_integer, ids))

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes that a token adds to the text: possibly part of a character, empty for a padded row."""
        data = self._bytes_of.get(token_id)
        if data is None:
            token = self.id_to_token(token_id)
            data = self._text_form.bytes_of(token, is_added=token_id in self._added_token_ids)
            self._bytes_of[token_id] = data
        return data

    def first_token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes that the first token with text adds: those of `token_bytes` without the leading space."""
        return self._text_form.first_bytes_of(self.id_to_token(token_id), is_added=token_id in self._added_token_ids)

    def id_to_token(self, token_id: int) -> str:
        """Returns the token as the vocabulary writes it, empty for a padded row."""
        if not 0 <= _integer(token_id) < self.vocab_size:
            raise RequestError(f"token id {token_id} is out of range; the model knows 0 to {self.vocab_size - 1}")
        return self._library.id_to_token(token_id) or ""

    def _encode_special(self, text: str) -> list[int]:
        ids: list[int] = encoding_of(self._library, self._text_form.prepared(text)).ids
        return ids

    def _checked_ids(self, ids: list[int]) -> list[int]:
        if ids and max(ids) >= self.vocab_size:
            token_id = max(ids)
            raise RequestError(
                f"the text holds the token {self._library.id_to_token(token_id)!r} (id {token_id}), but the model's "
                f"embedding has only {self.vocab_size} rows; take it out of the text"
            )
        return ids


def _integers(ids: Iterable[object]) -> list[int]:
    if not isinstance(ids, Iterable):
        raise RequestError(f"expected a list of token ids, got {type(ids).__name__}")
    return [_integer(token_id) for token_id in ids]


def _integer(token_id: object) -> int:
    if type(token_id) is int:
        return token_id
    # Integers of other libraries are welcome; true and false are a mistake.
    if isinstance(token_id, SupportsIndex) and not isinstance(token_id, bool):
        with suppress(TypeError):
            return operator.index(token_id)
    raise RequestError(f"expected token ids as integers, got {reprlib.repr(token_id)}")


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise RequestError(f"expected text as a string, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text holds half of a surrogate pair, {text[error.start]!r}, at character {error.start}; "
            "UTF-8 cannot hold it, send the whole character"
        ) from None
