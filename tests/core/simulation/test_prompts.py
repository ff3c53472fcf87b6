"""Prompts are equal exactly where a workload says so."""

from __future__ import annotations

import itertools

import pytest

from tokenloom.simulation.prompts import PromptMaker
from tokenloom.simulation.timed_request import TimedRequest


def common(first: list[int], second: list[int]) -> int:
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


@pytest.mark.parametrize("vocab_size", [3, 4, 64, 128_256])
def test_requests_share_their_leading_blocks_and_nothing_more(vocab_size: int) -> None:
    maker = PromptMaker(vocab_size)
    first = maker.make(TimedRequest(0.0, 1700, 1, (7, 70_000, 3, 4), 512))
    second = maker.make(TimedRequest(0.0, 1600, 1, (7, 70_000, 5, 6), 512))
    assert (len(first), len(second)) == (1700, 1600)
    assert 1024 <= common(first, second) < 1024 + 16
    assert max(first) < vocab_size
    assert min(first) >= 0


def test_the_last_shared_block_may_be_cut_and_a_tail_is_nobody_elses() -> None:
    maker = PromptMaker(100)
    cut = maker.make(TimedRequest(0.0, 520, 1, (1, 2), 512))
    tail = maker.make(TimedRequest(0.0, 560, 1, (1,), 512))
    other_tail = maker.make(TimedRequest(0.0, 560, 1, (1,), 512))
    assert len(cut) == 520
    assert common(cut, tail) == common(cut, other_tail) == common(tail, other_tail) == 512


def test_own_parts_differ_in_their_first_token_even_where_a_block_is_one_token() -> None:
    maker = PromptMaker(128)
    alone = [maker.make(TimedRequest(0.0, 20, 1)) for _ in range(20)]
    behind = [maker.make(TimedRequest(0.0, 20, 1, (9,), 8)) for _ in range(20)]
    for first, second in itertools.combinations(alone, 2):
        assert common(first, second) == 0
    for first, second in itertools.combinations(behind, 2):
        assert common(first, second) == 8
    for first, second in itertools.product(alone, behind):
        assert common(first, second) == 0


def test_an_own_part_is_never_a_shared_block() -> None:
    maker = PromptMaker(64)
    blocks = [tuple(maker.make(TimedRequest(0.0, 1, 1, (block_id,), 1))) for block_id in range(200)]
    owns = [tuple(maker.make(TimedRequest(0.0, 1, 1))) for _ in range(200)]
    assert not set(blocks) & set(owns)


@pytest.mark.parametrize("vocab_size", [3, 4, 10])
def test_numbers_beyond_the_vocabulary_still_tell_requests_apart(vocab_size: int) -> None:
    maker = PromptMaker(vocab_size)
    prompts = [tuple(maker.make(TimedRequest(0.0, 20, 1))) for _ in range(500)]
    assert len(set(prompts)) == 500


def test_given_tokens_are_kept() -> None:
    assert PromptMaker(10).make(TimedRequest(0.0, 3, 1, token_ids=(9, 8, 7))) == [9, 8, 7]
