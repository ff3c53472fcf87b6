"""Tokens as text, bytes and offsets."""

from __future__ import annotations

from tokenloom.batch import TokenLogprobs
from tokenloom.server.logprob_shapes import LogprobWriter
from tokenloom.text.tokenizer import Tokenizer


def test_offsets_count_characters_and_not_bytes(byte_tokenizer: Tokenizer) -> None:
    writer = LogprobWriter(byte_tokenizer, skip_special_tokens=True)
    ids = list("aé漢b".encode())
    entries = [TokenLogprobs(token_id, -1.0) for token_id in ids]
    offsets = writer.output_offsets([97], 10)
    shown = writer.completion(entries, ids, 0, offsets)
    # A character belongs to its first token; the others begin behind it.
    assert shown.text_offset == [10, 11, 12, 12, 13, 13, 13]
    assert offsets.take([97]) == [14]
    assert bytes(byte for token in shown.bytes for byte in token) == "aé漢b".encode()


def test_tokens_with_equal_text_keep_the_more_likely_one(byte_tokenizer: Tokenizer) -> None:
    writer = LogprobWriter(byte_tokenizer, skip_special_tokens=True)
    # Ids from 256 on are padded rows, without any text.
    entry = TokenLogprobs(300, -4.0, ((256, -1.0), (257, -2.0)))
    shown = writer.completion([entry], [300], 2, writer.output_offsets([], 0))
    assert shown.top_logprobs == [{"": -1.0}]
    assert shown.tokens == [""]


def test_the_chosen_token_is_among_the_others(byte_tokenizer: Tokenizer) -> None:
    writer = LogprobWriter(byte_tokenizer, skip_special_tokens=True)
    entry = TokenLogprobs(97, -4.0, ((98, -1.0),))
    shown = writer.completion([entry], [97], 1, writer.output_offsets([], 0))
    assert shown.top_logprobs == [{"b": -1.0, "a": -4.0}]


def test_a_prompts_token_bears_its_rank_also_where_it_is_not_among_the_likely_ones(byte_tokenizer: Tokenizer) -> None:
    writer = LogprobWriter(byte_tokenizer, skip_special_tokens=True)
    likely = ((98, -1.0), (99, -1.5))
    (beyond, among) = writer.prompt([TokenLogprobs(97, -4.0, likely, 17), TokenLogprobs(99, -1.5, likely, 2)])
    assert beyond is not None
    assert among is not None
    assert {token: entry.rank for token, entry in beyond.items()} == {"98": 1, "99": 2, "97": 17}
    assert {token: entry.rank for token, entry in among.items()} == {"98": 1, "99": 2}
