"""The n-gram drafter against a search written out token by token, and its rules one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import DraftBatch, DrafterNeeds
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig
from tokenloom_spec_decode.ngram import NgramConfig, NgramDrafter, continue_repetition

POLICY = PluginChoice("spec_decode.policy", "fixed", FixedPolicyConfig())


def _drafts(token_ids: Sequence[int], min_n: int = 2, max_n: int = 4, max_drafts: int = 4) -> tuple[int, ...]:
    return continue_repetition(np.array(token_ids, dtype=np.int32), min_n, max_n, max_drafts)


def _drafts_by_search(token_ids: Sequence[int], min_n: int, max_n: int, max_drafts: int) -> tuple[int, ...]:
    for length in range(max_n, min_n - 1, -1):
        for stop in range(len(token_ids) - 1, length - 1, -1):
            if list(token_ids[stop - length : stop]) == list(token_ids[len(token_ids) - length :]):
                grown = list(token_ids)
                for step in range(max_drafts):
                    grown.append(grown[stop + step])
                return tuple(grown[len(token_ids) :])
    return ()


@settings(max_examples=400, deadline=None)
@given(
    token_ids=st.lists(st.integers(0, 3), max_size=40),
    min_n=st.integers(1, 4),
    extra_n=st.integers(0, 3),
    max_drafts=st.integers(0, 9),
)
def test_ngram_equals_a_plain_search(token_ids: list[int], min_n: int, extra_n: int, max_drafts: int) -> None:
    expected = _drafts_by_search(token_ids, min_n, min_n + extra_n, max_drafts)
    assert _drafts(token_ids, min_n, min_n + extra_n, max_drafts) == expected


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([], ()),
        ([1], ()),
        ([1, 2, 3, 4, 5], ()),
        ([7, 8, 9, 7], ()),  # one token repeats, two are asked for
        ([1, 2, 30, 31, 32, 33, 9, 1, 2], (30, 31, 32, 33)),
        ([1, 2, 30, 9, 1, 2, 40, 8, 1, 2], (40, 8, 1, 2)),  # the latest of two
        ([5, 1, 2, 30, 9, 9, 1, 2, 40, 8, 5, 1, 2], (30, 9, 9, 1)),  # a longer one before a later one
        ([4, 4, 4], (4, 4, 4, 4)),  # a run goes on
        ([1, 2, 3, 1, 2, 3, 1, 2], (3, 1, 2, 3)),  # so does a period
    ],
)
def test_ngram_proposes(token_ids: list[int], expected: tuple[int, ...]) -> None:
    assert _drafts(token_ids) == expected


def _batch(*token_ids: Sequence[int], max_drafts: Sequence[int]) -> DraftBatch:
    return DraftBatch(
        request_ids=[f"r{index}" for index in range(len(token_ids))],
        token_ids=[np.array(ids, dtype=np.int32) for ids in token_ids],
        num_prompt_tokens=[len(ids) for ids in token_ids],
        max_drafts=max_drafts,
    )


def test_ngram_answers_each_request_by_itself_and_in_order() -> None:
    drafter = NgramDrafter(2, 4)
    looping, fresh, capped, unasked = [1, 2, 3, 1, 2], [1, 2, 3, 4, 5], [6, 7, 8, 6, 7], [4, 4, 4, 4]
    proposals = drafter.propose(_batch(looping, fresh, capped, unasked, max_drafts=[4, 4, 1, 0]))
    assert [proposal.token_ids for proposal in proposals] == [(3, 1, 2, 3), (), (8,), ()]
    assert all(proposal.parents == () and proposal.probs is None for proposal in proposals)
    assert all(type(token) is int for proposal in proposals for token in proposal.token_ids)
    drafter.forget(["r0", "unknown"])
    assert drafter.propose(_batch(looping, max_drafts=[2]))[0].token_ids == (3, 1)
    assert drafter.propose(_batch(max_drafts=[])) == []


def test_ngram_reads_a_view_that_it_may_not_write_to() -> None:
    token_ids = np.array([1, 2, 3, 1, 2], dtype=np.int32)
    token_ids.flags.writeable = False
    assert continue_repetition(token_ids, 2, 4, 2) == (3, 1)


def test_ngram_needs_nothing_of_the_target() -> None:
    assert NgramDrafter(2, 4).needs() == DrafterNeeds()


def test_ngram_config_offers_its_policy() -> None:
    config = NgramConfig(policy=POLICY)
    assert (config.min_n, config.max_n) == (2, 4)
    assert config.draft_policy() is POLICY


@pytest.mark.parametrize("values", [{"min_n": 0}, {"min_n": 5}, {"max_n": 1}, {"max_n": True}, {"num_draft_tokens": 4}])
def test_ngram_config_refuses(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NgramConfig(policy=POLICY, **values)


def test_ngram_config_names_both_ends_of_an_empty_range() -> None:
    with pytest.raises(ValidationError, match="max_n must be at least min_n=5, got 4"):
        NgramConfig(policy=POLICY, min_n=5)
