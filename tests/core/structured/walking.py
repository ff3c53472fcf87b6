"""Walks through a constraint at random, and reads what it allows."""

from __future__ import annotations

import random
from functools import cache

import torch

from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.structured import GrammarSpec, compile_grammar
from tokenloom.structured.constraint import GrammarConstraint
from tokenloom.text import Tokenizer

__all__ = ["compiled", "legal_ids", "spelled", "takes", "walk"]


def compiled(spec: GrammarSpec, tokenizer: Tokenizer) -> GrammarConstraint:
    """The constraint for all rows of the tokenizer."""
    return compile_grammar(spec, tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)


def legal_ids(constraint: LogitsConstraint, tokenizer: Tokenizer, num_rows: int | None = None) -> list[int]:
    """Ids of all legal tokens, of the tokenizer's rows or more; what the mask held before does not matter."""
    mask = torch.arange(num_rows or tokenizer.vocab_size) % 2 == 0
    constraint.allowed_mask(mask)
    found: list[int] = mask.nonzero().flatten().tolist()
    return found


def walk(constraint: LogitsConstraint, tokenizer: Tokenizer, rng: random.Random, num_tokens: int) -> list[int]:
    """Advances by random legal tokens until the text ends or is long enough; returns them."""
    token_ids: list[int] = []
    while len(token_ids) < num_tokens and not constraint.is_terminated:
        token_ids.append(rng.choice(legal_ids(constraint, tokenizer)))
        assert constraint.advance(token_ids[-1])
    return token_ids


def spelled(text: str, tokenizer: Tokenizer) -> list[int]:
    """`text` in tokens of one byte each."""
    id_of = _ids_of_bytes(tokenizer)
    return [id_of[bytes([byte])] for byte in text.encode()]


@cache
def _ids_of_bytes(tokenizer: Tokenizer) -> dict[bytes, int]:
    ids = (token_id for token_id in range(tokenizer.vocab_size) if token_id not in tokenizer.special_token_ids)
    return {tokenizer.token_bytes(token_id): token_id for token_id in ids}


def takes(constraint: GrammarConstraint, text: str, tokenizer: Tokenizer) -> bool:
    """Whether the grammar takes `text` as a whole."""
    cursor = constraint.fork()
    is_legal = all(cursor.advance(token_id) for token_id in spelled(text, tokenizer))
    return is_legal and cursor.advance(tokenizer.eos_token_ids[0])
