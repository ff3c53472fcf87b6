"""encode_bad_words: a word as it starts a text, and behind a space."""

from __future__ import annotations

import pytest

from tokenloom.errors import RequestError
from tokenloom.text import Tokenizer
from tokenloom.text.bad_words import encode_bad_words


def test_each_word_is_encoded_alone_and_behind_a_space(tokenizer: Tokenizer) -> None:
    for word in ("fox", "dog", "hello", "the world"):
        found = encode_bad_words(tokenizer, [word])
        variants = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in (word, f" {word}")]
        # A variant may be missing only where a shorter one stands at its end.
        assert set(found) <= set(variants)
        for variant in variants:
            assert any(variant[-len(ids) :] == ids for ids in found), word


def test_output_with_the_word_completes_one_of_its_sequences(tokenizer: Tokenizer) -> None:
    found = encode_bad_words(tokenizer, ["fox"])
    for text in ("fox", "The fox", "a quick fox"):
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        assert any(ids[end - len(word) : end] == word for word in found for end in range(len(word), len(ids) + 1))


def test_spaces_in_front_of_a_word_mean_nothing(byte_tokenizer: Tokenizer) -> None:
    assert encode_bad_words(byte_tokenizer, ["  fox"]) == encode_bad_words(byte_tokenizer, ["fox"])


def test_no_sequence_ends_in_another_one(tokenizer: Tokenizer) -> None:
    found = encode_bad_words(tokenizer, ["fox", "ox", "x", "fox", "zzz"])
    assert len(set(found)) == len(found)
    assert not [(a, b) for a in found for b in found if a != b and a[-len(b) :] == b]


def test_no_words_need_no_tokens(byte_tokenizer: Tokenizer) -> None:
    assert encode_bad_words(byte_tokenizer, ()) == ()


@pytest.mark.parametrize("word", [" ", "   ", "\ud800"])
def test_word_that_has_no_tokens_is_refused(byte_tokenizer: Tokenizer, word: str) -> None:
    with pytest.raises(RequestError):
        encode_bad_words(byte_tokenizer, ["fox", word])
