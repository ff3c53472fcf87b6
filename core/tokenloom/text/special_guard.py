"""Keeps control tokens that a text merely spells apart from those that the chat template means.

A *control token* is a special token of the vocabulary (`<|im_end|>`, ...). The guard finds those of the template where
the whole tokenizer finds them (which knows all their rules: stripping, single words, normalization), and encodes the
text between them with a second tokenizer that has no control tokens at all; so whatever that text spells stays text.
"""

from __future__ import annotations

import json
import secrets
from functools import cached_property
from typing import Any, final

import tokenizers
from tokenizers import AddedToken

from tokenloom.errors import RequestError
from tokenloom.text.control_marks import ControlMarks, ControlStrings
from tokenloom.text.encoding import encoding_of
from tokenloom.text.token_bytes import TextForm

__all__ = ["SpecialGuard"]


@final
class SpecialGuard:
    """Encodes text with control strings as plain text, except where the template put them.

    Attributes:
        strings: finds and breaks control strings in the texts that go into a template.
    """

    def __init__(self, library: tokenizers.Tokenizer, text_form: TextForm) -> None:
        self._library = library
        self._text_form = text_form
        self._added = library.get_added_tokens_decoder()
        self._controls = {token_id: token for token_id, token in self._added.items() if token.special}
        self.strings = ControlStrings(token.content for token in self._controls.values())
        self._plain = _Plain(library.model, library.normalizer, library.pre_tokenizer, self._added)

    def encode(self, text: str) -> list[int]:
        """Encodes `text`, in which every control string is only text.

        Raises:
            RequestError: the text spells a control token of one character that the model has no other token for.
        """
        return self._encode_plain(self._plain, self._text_form.prepared(text))

    def encode_marked(self, text: str, marks: ControlMarks) -> list[int]:
        """Encodes `text`, in which whole control strings are control tokens and those broken by `marks` are text."""
        encoding = encoding_of(self._library, text)
        ids: list[int] = []
        between: list[int] = []  # what the library makes of the text since the last added token
        done, is_inner = 0, False
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets):
            if not self._is_added(token_id, text[start:end]):
                between.append(token_id)
                continue
            # A space that normalization added can be all there is; then no text belongs to it.
            ids += self._encode_between(marks.restored(text[done:start]), is_inner, done) if start > done else between
            ids.append(token_id)
            # Text that was cut after its normalization does not get a second leading space.
            is_inner = self._prefixes_first_only or self._added[token_id].normalized
            between, done = [], end
        return ids + self._encode_between(marks.restored(text[done:]), is_inner, done)

    def _encode_between(self, text: str, is_inner: bool, position: int) -> list[int]:
        if not text:
            return []
        whole = text if position else self._text_form.prepared(text)
        return self._encode_plain(self._inner if is_inner else self._plain, whole)

    def _is_added(self, token_id: int, found: str) -> bool:
        # The token for unknown text is an added token, too, but stands for anything.
        token = self._added.get(token_id)
        return token is not None and (token.normalized or found.strip() == token.content.strip())

    def _encode_plain(self, plain: _Plain, text: str) -> list[int]:
        ids = plain.encode(text)
        spelled = [self._controls[token_id].content for token_id in ids if token_id in self._controls]
        if not spelled:
            return ids
        # The model itself knows control strings as words; few do, so the vocabulary without them is built when needed.
        if not self._text_form.byte_fallback and any(len(string) == 1 for string in spelled):
            string = next(string for string in spelled if len(string) == 1)
            raise RequestError(
                f"the text spells the control token {string!r}, which this tokenizer cannot encode as plain text; take "
                "it out of the text"
            )
        if plain.strict is None:
            plain.strict = self._without_controls(plain)
        return plain.strict.encode(text)

    @cached_property
    def _inner(self) -> _Plain:
        return _Plain(self._library.model, *_without_space_prefix(self._library), self._added)

    @cached_property
    def _prefixes_first_only(self) -> bool:
        return '"prepend_scheme":"first"' in _state(self._library.pre_tokenizer)

    def _without_controls(self, plain: _Plain) -> _Plain:
        state = json.loads(self._library.to_str())["model"]
        # Nobody who writes a prompt can know the nonce, so no text can spell these.
        nonce = secrets.token_hex(8)
        hidden = {token.content: f"\U0010fffd{nonce}.{token_id}" for token_id, token in self._controls.items()}
        if isinstance(state["vocab"], dict):
            state["vocab"] = {hidden.get(token, token): token_id for token, token_id in state["vocab"].items()}
            pairs = (tuple(pair) for pair in state["merges"])
            state["merges"] = [pair for pair in pairs if hidden.keys().isdisjoint((*pair, "".join(pair)))]
        else:
            state["vocab"] = [[hidden.get(token, token), score] for token, score in state["vocab"]]
        if state.get("unk_token") in hidden:
            state["unk_token"] = hidden[state["unk_token"]]
        return _Plain(_rebuilt(model=state).model, plain.normalizer, plain.pre_tokenizer, self._added)


@final
class _Plain:
    """A tokenizer of the same vocabulary without control tokens, which gives the ids of the real one."""

    def __init__(self, model: Any, normalizer: Any, pre_tokenizer: Any, added: dict[int, AddedToken]) -> None:
        self.normalizer, self.pre_tokenizer = normalizer, pre_tokenizer
        self.strict: _Plain | None = None  # the same over a model that does not know the control tokens either
        self._library = tokenizers.Tokenizer(model)  # shares the model, so this is cheap
        if normalizer is not None:
            self._library.normalizer = normalizer
        if pre_tokenizer is not None:
            self._library.pre_tokenizer = pre_tokenizer
        plain = [(token_id, token) for token_id, token in sorted(added.items()) if not token.special]
        self._library.add_tokens([token for _, token in plain])
        # Ids of tokens that are not in the model's own vocabulary depend on the order of adding.
        self._real_id_of = {self._library.token_to_id(token.content): token_id for token_id, token in plain}

    def encode(self, text: str) -> list[int]:
        ids = encoding_of(self._library, text).ids
        return [self._real_id_of.get(token_id, token_id) for token_id in ids]


def _state(part: Any) -> str:
    """A part of a tokenizer as JSON, which is its pickled form."""
    return "null" if part is None else bytes(part.__getstate__()).decode()


def _rebuilt(**parts: Any) -> tokenizers.Tokenizer:
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    state: dict[str, Any] = {"version": "1.0", "added_tokens": [], "model": empty, **parts}
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def _without_space_prefix(library: tokenizers.Tokenizer) -> tuple[Any, Any]:
    """The normalizer and the pre-tokenizer, neither of which puts a space before a text."""
    normalizer, pre_tokenizer = (json.loads(_state(part)) for part in (library.normalizer, library.pre_tokenizer))
    rebuilt = _rebuilt(normalizer=_unprefixed(normalizer), pre_tokenizer=_unprefixed(pre_tokenizer))
    return rebuilt.normalizer, rebuilt.pre_tokenizer


def _unprefixed(part: Any) -> Any:
    if part is None or part["type"] == "Prepend":
        return None
    if part["type"] == "Metaspace":
        return {**part, "prepend_scheme": "never"}
    for key in ("normalizers", "pretokenizers"):
        if key in part:
            steps = (_unprefixed(step) for step in part[key])
            return {**part, key: [step for step in steps if step is not None]}
    return part
