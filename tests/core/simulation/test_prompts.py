"""Prompts are equal exactly where a workload says so."""

from __future__ import annotations

import pytest

from tokenloom.simulation.prompts import PromptMaker
from tokenloom.simulation.timed_request import TimedRequest


def common(first: list[int], second: list[int]) -> int:
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


@pytest.mark.parametrize("vocab_size", [4, 64, 128_256])
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
    assert common(cut, tail) == 512
    assert 512 <= common(tail, other_tail) < 516


def test_requests_without_shared_blocks_differ_from_the_start() -> None:
    maker = PromptMaker(128_256)
    prompts = [maker.make(TimedRequest(0.0, 20, 1)) for _ in range(50)]
    assert len({tuple(prompt[:2]) for prompt in prompts}) == 50


def test_given_tokens_are_kept() -> None:
    assert PromptMaker(10).make(TimedRequest(0.0, 3, 1, token_ids=(9, 8, 7))) == [9, 8, 7]
