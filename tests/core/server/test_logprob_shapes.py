"""Tokens as text, bytes and offsets."""

from __future__ import annotations

from tokenloom.batch import TokenLogprobs
from tokenloom.server.logprob_shapes import LogprobWriter
from tokenloom.text.tokenizer import Tokenizer


def test_offsets_count_characters_and_not_bytes(byte_tokenizer: Tokenizer) -> None:
    writer = LogprobWriter(byte_tokenizer, skip_special_tokens=True)
    ids = list("aé漢b".encode())
    entries = [TokenLogprobs(token_id, -1.0) for token_id in ids]
    shown, end = writer.completion(entries, ids, 0, 10)
    # A character belongs to its first token; the others begin behind it.
    assert shown.text_offset == [10, 11, 12, 12, 13, 13, 13]
    assert end == 14
    assert bytes(byte for token in shown.bytes for byte in token) == "aé漢b".encode()


def test_tokens_with_equal_text_keep_the_more_likely_one(byte_tokenizer: Tokenizer) -> None:
    writer = LogprobWriter(byte_tokenizer, skip_special_tokens=True)
    # Ids from 256 on are padded rows, without any text.
    entry = TokenLogprobs(300, -4.0, ((256, -1.0), (257, -2.0)))
    shown, _ = writer.completion([entry], [300], 2, 0)
    assert shown.top_logprobs == [{"": -1.0}]
    assert shown.tokens == [""]


def test_the_chosen_token_is_among_the_others(byte_tokenizer: Tokenizer) -> None:
    writer = LogprobWriter(byte_tokenizer, skip_special_tokens=True)
    shown, _ = writer.completion([TokenLogprobs(97, -4.0, ((98, -1.0),))], [97], 1, 0)
    assert shown.top_logprobs == [{"b": -1.0, "a": -4.0}]
