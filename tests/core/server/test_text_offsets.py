"""Offsets of tokens against the text that the detokenizer writes."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.byte_level_vocabulary import CHATML, byte_level_metadata
from tests.core.text.tiny_sentencepiece import gguf_metadata, train
from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.server.logprob_shapes import LogprobWriter
from tokenloom.server.text_offsets import TextOffsets
from tokenloom.text.detokenizer import IncrementalDetokenizer
from tokenloom.text.tokenizer import Tokenizer, build_tokenizer

EURO = list("€".encode())


def text_of(tokenizer: Tokenizer, ids: list[int], *, continues: bool = True) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer, (), continues=continues)
    return detokenizer.push(ids).text + detokenizer.finish().text


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.sampled_from([*b"ab \x80\xc3\xa9\xe2\x82\xac\xed\xa0\xf0\x9f\x98\x80\xff"]), max_size=12))
def test_each_offset_is_where_the_text_of_the_tokens_before_ends(ids: list[int], byte_tokenizer: Tokenizer) -> None:
    """Half a character counts as the one that stands for it."""
    offsets = TextOffsets(byte_tokenizer, skip_special_tokens=True, start=5).take(ids)
    assert offsets == [5 + len(text_of(byte_tokenizer, ids[:index])) for index in range(len(ids))]


@pytest.mark.parametrize("cuts", [(), (1,), (2, 3), (1, 2, 3, 4, 5)])
def test_offsets_are_the_same_however_the_tokens_come(cuts: tuple[int, ...], byte_tokenizer: Tokenizer) -> None:
    ids = [*EURO[:2], *EURO, 97]
    whole = TextOffsets(byte_tokenizer, skip_special_tokens=True).take(ids)
    assert whole == [0, 1, 1, 2, 2, 2]
    offsets, bounds = TextOffsets(byte_tokenizer, skip_special_tokens=True), (0, *cuts, len(ids))
    pieces = [offsets.take(ids[start:end]) for start, end in pairwise(bounds)]
    assert [offset for piece in pieces for offset in piece] == whole


def test_the_output_begins_behind_the_echoed_text_whatever_the_prompts_tokens_were(byte_tokenizer: Tokenizer) -> None:
    writer = LogprobWriter(byte_tokenizer, skip_special_tokens=True)
    prompt = [97, *EURO[:2]]
    echoed = byte_tokenizer.decode(prompt)
    assert writer.prompt_offsets(echoed).take(prompt) == [0, 1, 2]
    output = [*EURO[2:], 98]
    assert writer.output_offsets(prompt, len(echoed)).take(output) == [2, 3]
    assert (echoed + text_of(byte_tokenizer, output))[3] == "b"


def test_special_tokens_of_a_prompt_count_where_its_text_holds_them() -> None:
    metadata = byte_level_metadata()
    source = TokenizerSource("gguf", Path("tiny.gguf"), metadata, CHATML)
    tokenizer = build_tokenizer(source, len(metadata["tokenizer.ggml.tokens"]))
    mark = tokenizer.id_to_token(1)
    (letter,) = tokenizer.encode("a", add_special_tokens=False)
    for skips in (True, False):
        writer = LogprobWriter(tokenizer, skip_special_tokens=skips)
        assert writer.prompt_offsets("aa").take([1, letter, letter]) == [0, 0, 1]
        assert writer.prompt_offsets(f"a{mark}a").take([1, letter, 1, letter]) == [0, 0, 1, 1 + len(mark)]
        output = writer.output_offsets([letter], 0).take([1, letter])
        assert output == ([0, 0] if skips else [0, len(mark)])


def test_a_space_that_decoding_takes_away_does_not_count() -> None:
    metadata = gguf_metadata(train())
    source = TokenizerSource("gguf", Path("tiny.gguf"), metadata, CHATML)
    tokenizer = build_tokenizer(source, len(metadata["tokenizer.ggml.tokens"]))
    assert tokenizer.strips_leading_space
    ids = tokenizer.encode("the time", add_special_tokens=False)
    writer, rng = LogprobWriter(tokenizer, skip_special_tokens=True), random.Random(0)
    rng.shuffle(ids)
    for before, has_text in (([], False), (ids, True)):
        offsets = writer.output_offsets(before, 0).take(ids)
        expected = [len(text_of(tokenizer, ids[:index], continues=has_text)) for index in range(len(ids))]
        assert offsets == expected
