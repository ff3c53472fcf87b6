"""A cursor in a compiled grammar: the contract of logits constraints, over tokenizers of each kind."""

from __future__ import annotations

import itertools
import pickle
import random

import pytest

from tests.core.structured.conftest import NUM_PADDED
from tests.core.structured.walking import compiled, legal_ids, spelled, takes, walk
from tokenloom.structured import GrammarCompiler, GrammarSpec
from tokenloom.structured.compiler import _build_matcher
from tokenloom.structured.constraint import CompiledGrammar, GrammarConstraint
from tokenloom.structured.vocabulary import token_vocabulary
from tokenloom.text import Tokenizer

SPECS = {
    "json_object": GrammarSpec.json_object(),
    "json_schema": GrammarSpec.json_schema(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 4}, "size": {"enum": [1, "größe"]}},
            "required": ["name", "size"],
            "additionalProperties": False,
        }
    ),
    "regex": GrammarSpec.regex("[a-e]+ é?x{2,}|日本"),
    "lark": GrammarSpec.lark('start: "a" start "b" | "c"'),
    "choice": GrammarSpec.choice(["yes", "yes!", " no", "日本語😀"]),
}


@pytest.mark.parametrize("name", SPECS)
def test_mask_and_advance_agree_for_every_token(name: str, tokenizer: Tokenizer) -> None:
    constraint = compiled(SPECS[name], tokenizer).fork()
    rng = random.Random(name)
    for _ in range(12):
        legal = legal_ids(constraint, tokenizer)
        assert legal == [token_id for token_id in range(tokenizer.vocab_size) if constraint.fork().advance(token_id)]
        assert legal, "nothing is legal, and the text has not ended"
        constraint.advance(rng.choice(legal))
        if constraint.is_terminated:
            break


def test_refused_tokens_leave_the_state_as_it_was(tokenizer: Tokenizer) -> None:
    constraint = compiled(SPECS["choice"], tokenizer).fork()
    for token_id in spelled("ye", tokenizer):
        assert constraint.advance(token_id)
        before = legal_ids(constraint, tokenizer)
        for other in range(tokenizer.vocab_size):
            if other not in before:
                assert not constraint.advance(other)
        assert legal_ids(constraint, tokenizer) == before


@pytest.mark.parametrize("name", SPECS)
def test_rollback_and_fork_lead_to_the_states_of_a_replay(name: str, tokenizer: Tokenizer) -> None:
    constraint = compiled(SPECS[name], tokenizer)
    cursor, token_ids, rng = constraint.fork(), list[int](), random.Random(7)
    for _ in range(25):
        if not cursor.is_terminated:
            token_ids += walk(cursor, tokenizer, rng, rng.randint(1, 6))
        num_back = rng.randint(0, len(token_ids)) if rng.random() < 0.7 else 0
        walk(cursor.fork(), tokenizer, rng, 3)
        cursor.rollback(num_back)
        del token_ids[len(token_ids) - num_back :]
        replayed = constraint.fork()
        assert all(replayed.advance(token_id) for token_id in token_ids)
        assert cursor.is_terminated == replayed.is_terminated
        if not cursor.is_terminated:
            assert legal_ids(cursor, tokenizer) == legal_ids(replayed, tokenizer)
            cursor = cursor.fork() if rng.random() < 0.3 else cursor


def test_end_tokens_are_legal_where_the_text_may_end_and_only_there(byte_level: Tokenizer) -> None:
    """All of them: a model's config can name more than its tokenizer."""
    vocabulary = token_vocabulary(byte_level, byte_level.vocab_size, (2, 0))
    constraint = GrammarCompiler(vocabulary).compile(GrammarSpec.regex("ab?")).fork()
    first, second = spelled("ab", byte_level)
    assert not {0, 2} & set(legal_ids(constraint, byte_level))
    assert not constraint.advance(2)
    constraint.advance(first)
    assert {0, 2, second} <= set(legal_ids(constraint, byte_level))
    constraint.advance(second)
    assert legal_ids(constraint, byte_level) == [0, 2]
    for end in (0, 2):
        assert constraint.advance(end)
        assert constraint.is_terminated
        assert not constraint.advance(end)
        constraint.rollback(1)
        assert not constraint.is_terminated
    assert constraint.advance(0)
    constraint.rollback(2)
    assert {0, 2, second} <= set(legal_ids(constraint, byte_level))


def test_no_text_holds_special_tokens_or_padded_rows(tokenizer: Tokenizer) -> None:
    legal = set(legal_ids(compiled(GrammarSpec.regex("(?s:.*)"), tokenizer), tokenizer))
    padded = set(range(tokenizer.vocab_size - NUM_PADDED, tokenizer.vocab_size))
    assert not legal & padded
    assert legal & tokenizer.special_token_ids == set(tokenizer.eos_token_ids)


def test_special_tokens_are_legal_where_a_grammar_names_them(byte_level: Tokenizer) -> None:
    constraint = compiled(GrammarSpec.lark('start: <|im_start|> "a"'), byte_level).fork()
    assert legal_ids(constraint, byte_level) == [1]
    assert constraint.advance(1)
    assert constraint.advance(*spelled("a", byte_level))


def test_a_model_with_more_rows_than_its_tokenizer(byte_level: Tokenizer) -> None:
    more = byte_level.vocab_size + 100
    vocabulary = token_vocabulary(byte_level, more, byte_level.eos_token_ids)
    assert len(vocabulary.tokens) == more
    constraint = GrammarCompiler(vocabulary).compile(SPECS["regex"])
    expected = legal_ids(compiled(SPECS["regex"], byte_level), byte_level)
    assert legal_ids(constraint, byte_level, num_rows=more) == expected


@pytest.mark.parametrize("name", SPECS)
def test_a_cursor_can_be_sent_to_another_process(name: str, byte_level: Tokenizer) -> None:
    cursor = compiled(SPECS[name], byte_level).fork()
    walk(cursor, byte_level, random.Random(3), 3)
    copy = pickle.loads(pickle.dumps(cursor))
    assert copy.is_terminated == cursor.is_terminated
    if not cursor.is_terminated:
        assert legal_ids(copy, byte_level) == legal_ids(cursor, byte_level)
        assert walk(copy, byte_level, random.Random(4), 5) == walk(cursor, byte_level, random.Random(4), 5)


@pytest.mark.parametrize("text", ["yes", "yes!", " no", "日本語😀"])
def test_characters_may_span_tokens(text: str, byte_level: Tokenizer) -> None:
    constraint = compiled(SPECS["choice"], byte_level)
    assert takes(constraint, text, byte_level)
    assert not takes(constraint, text[:-1] + "x", byte_level)


def test_a_cursor_that_takes_too_much_cpu_time_allows_nothing_and_says_so(byte_level: Tokenizer) -> None:
    """The clock of this test says 20 ms for each call; forks of the beginning have a budget of their own."""
    ticks = itertools.count()
    vocabulary = token_vocabulary(byte_level, byte_level.vocab_size, byte_level.eos_token_ids)
    grammar = CompiledGrammar(GrammarSpec.regex("a*"), vocabulary, _build_matcher)
    beginning = GrammarConstraint(grammar, cpu_clock=lambda: 0.020 * next(ticks))
    (token_id,) = spelled("a", byte_level)
    cursor, num_advanced = beginning.fork(), 0
    while token_id in legal_ids(cursor, byte_level):
        assert not cursor.failure
        assert cursor.advance(token_id)
        num_advanced += 1
        assert num_advanced < 100, "the limit was not met"
    assert num_advanced > 5
    assert "regex was given up: it took 0." in cursor.failure
    assert not legal_ids(cursor.fork(), byte_level)
    assert cursor.advance(token_id), "what was drawn under an earlier mask stays legal"
    assert token_id in legal_ids(beginning.fork(), byte_level)


def test_ordinary_cursors_take_as_long_as_they_like(byte_level: Tokenizer) -> None:
    ticks = itertools.count()
    vocabulary = token_vocabulary(byte_level, byte_level.vocab_size, byte_level.eos_token_ids)
    grammar = CompiledGrammar(GrammarSpec.regex("a*"), vocabulary, _build_matcher)
    cursor = GrammarConstraint(grammar, cpu_clock=lambda: 0.001 * next(ticks)).fork()
    (token_id,) = spelled("a", byte_level)
    for _ in range(600):
        assert token_id in legal_ids(cursor, byte_level)
        assert cursor.advance(token_id)
