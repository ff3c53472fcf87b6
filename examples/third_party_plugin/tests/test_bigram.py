"""What the drafter proposes, and that it keeps its contract."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tokenloom.interfaces.spec_decode import DraftBatch
from tokenloom.testing import SpecDecodeSuite

from tokenloom_example.bigram import BigramDrafter


class TestBigram(SpecDecodeSuite):
    """The conformance suite of drafters: a failing test says what was broken, and where the contract stands."""

    plugin = "bigram"


def batch(requests: dict[str, list[int]], max_drafts: Sequence[int]) -> DraftBatch:
    return DraftBatch(
        request_ids=list(requests),
        token_ids=[np.array(ids, np.int32) for ids in requests.values()],
        num_prompt_tokens=[1] * len(requests),
        max_drafts=max_drafts,
    )


def propose(drafter: BigramDrafter, requests: dict[str, list[int]], max_drafts: int = 3) -> list[tuple[int, ...]]:
    proposals = drafter.propose(batch(requests, [max_drafts] * len(requests)))
    return [proposal.token_ids for proposal in proposals]


def test_propose_follows_the_text_ahead() -> None:
    assert propose(BigramDrafter(1), {"a": [1, 2, 3, 4, 5, 1]}) == [(2, 3, 4)]


def test_propose_takes_the_latest_follower() -> None:
    assert propose(BigramDrafter(1), {"a": [1, 2, 1, 3, 1]}, max_drafts=1) == [(3,)]


def test_propose_is_empty_for_a_token_that_was_never_followed() -> None:
    assert propose(BigramDrafter(1), {"a": [1, 2, 3], "b": [7]}) == [(), ()]


def test_propose_goes_round_a_repetition() -> None:
    assert propose(BigramDrafter(1), {"a": [9, 5, 6, 7, 5, 6]}, max_drafts=8) == [(7, 5, 6, 7, 5, 6, 7, 5)]


def test_propose_ends_at_a_pair_that_is_too_rare() -> None:
    text = [1, 2, 3, 1, 2, 4, 1]
    assert propose(BigramDrafter(2), {"a": text}) == [(2,)]
    assert propose(BigramDrafter(3), {"a": text}) == [()]


def test_propose_learns_from_step_to_step_what_it_would_from_the_whole() -> None:
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6]
    for min_count in (1, 2):
        stepwise = BigramDrafter(min_count)
        for end in range(1, len(text) + 1):
            assert propose(stepwise, {"a": text[:end]}) == propose(BigramDrafter(min_count), {"a": text[:end]})
