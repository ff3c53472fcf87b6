"""Keeps control tokens that a text merely spells apart from those that the chat template means.

A *control token* is a special token of the vocabulary (`<|im_end|>`, ...). The guard is a second tokenizer over the
same model in which each control token answers to a secret alias instead of its own string; so whatever a text spells
stays text, and only what was replaced by its alias on purpose becomes a control token.

Template output is sorted out with a *mark*: one private-use character that occurs nowhere in the input. It is put into
every control string of the user's own text before the template runs, which breaks the string; what is still whole
afterwards came from the template.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from typing import final

import tokenizers
from tokenizers import AddedToken

from tokenloom.errors import RequestError

__all__ = ["SpecialGuard", "mark_forms", "unused_mark"]


@final
class SpecialGuard:
    """Encodes text with control strings as plain text, except where the template put them."""

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self._guarded = tokenizers.Tokenizer(library.model)  # shares the model, so this is cheap
        if library.normalizer is not None:
            self._guarded.normalizer = library.normalizer
        if library.pre_tokenizer is not None:
            self._guarded.pre_tokenizer = library.pre_tokenizer
        added = library.get_added_tokens_decoder()
        self._special_texts = {token_id: token.content for token_id, token in added.items() if token.special}
        self._alias_of = self._add_tokens(added)
        # Ids of tokens that are not in the model's own vocabulary depend on the order of adding.
        real_ids = {self._alias_of.get(token.content, token.content): token_id for token_id, token in added.items()}
        self._real_id_of = {self._guarded.token_to_id(text): token_id for text, token_id in real_ids.items()}
        longest_first = sorted(self._alias_of, key=len, reverse=True)
        alternatives = "|".join(re.escape(text) for text in longest_first) or r"(?!)"
        self._special = re.compile(alternatives)
        self._special_start = re.compile(f"(?=(?:{alternatives}))(.)", re.DOTALL)
        self._prefixes = {text[:end] for text in longest_first for end in range(1, len(text))}
        self._max_prefix = max(map(len, self._prefixes), default=0)

    def _add_tokens(self, added: dict[int, AddedToken]) -> dict[str, str]:
        # Nobody who writes a prompt can know the nonce, so no text can spell an alias.
        nonce = secrets.token_hex(8)
        alias_of, aliases = {}, []
        for token_id, token in sorted(added.items()):
            if token.special:
                alias = f"\U000f0000{nonce}.{token_id}\U000f0001"
                alias_of[token.content] = alias
                flags = {"single_word": token.single_word, "lstrip": token.lstrip, "rstrip": token.rstrip}
                aliases.append(AddedToken(alias, normalized=token.normalized, special=True, **flags))
        self._guarded.add_tokens([token for _, token in sorted(added.items()) if not token.special])
        self._guarded.add_special_tokens(aliases)
        return alias_of

    def is_at_risk(self, text: str) -> bool:
        """Whether `text` spells a control token, or its end could become one with the text that follows."""
        return self._special.search(text) is not None or bool(self._open_ends(text))

    def broken(self, text: str, mark: str) -> str:
        """Returns `text` with `mark` inside every control string that begins in it."""
        for position in sorted(self._open_ends(text), reverse=True):
            text = f"{text[: position + 1]}{mark}{text[position + 1 :]}"
        return self._special_start.sub(rf"\1{mark}", text)

    def _open_ends(self, text: str) -> set[int]:
        """Positions from which the rest of `text` is the beginning of a control string; templates may strip the end."""
        stripped = text.rstrip()
        return {
            start
            for ending in {text, stripped}
            for start in range(max(0, len(ending) - self._max_prefix), len(ending))
            if ending[start:] in self._prefixes
        }

    def encode(self, text: str) -> list[int]:
        """Encodes `text`, in which every control string is only text."""
        return self._encode(text)

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """Encodes `text`, in which whole control strings are control tokens and those broken by `mark` are text."""
        text = self._special.sub(lambda match: self._alias_of[match[0]], text)
        for form in mark_forms(mark):
            text = text.replace(form, "")
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        encoding = self._guarded.encode(text, add_special_tokens=False)
        ids = encoding.ids
        for position, token_id in enumerate(ids):
            # Only a model that looks whole words up can do this (its vocabulary holds the control strings as well).
            if token_id in self._special_texts and token_id not in self._real_id_of:
                start, end = encoding.offsets[position]
                if text[start:end].strip() == self._special_texts[token_id]:
                    raise RequestError(
                        f"the text spells the control token {text[start:end]!r}, which this tokenizer cannot encode as "
                        "plain text; take it out of the text"
                    )
        return [self._real_id_of.get(token_id, token_id) for token_id in ids]


def unused_mark(texts: Iterable[str]) -> str:
    """Returns a private-use character that occurs in none of `texts`, plain or in JSON's escaped form."""
    joined = "".join(texts)
    return next(
        char for char in map(chr, range(0xF0002, 0xFFFFE)) if not any(form in joined for form in mark_forms(char))
    )


def mark_forms(mark: str) -> tuple[str, str]:
    """The mark itself, and what is left of it where a template writes ASCII-only JSON."""
    return mark, json.dumps(mark)[1:-1]
