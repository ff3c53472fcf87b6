"""The suffix drafter: whose text it takes, what it keeps of requests that ended, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import DraftBatch, DrafterNeeds, Proposal
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig
from tokenloom_spec_decode.suffix import SharedText, SuffixConfig, SuffixDrafter
from tokenloom_spec_decode.suffix_tree import SEPARATOR

POLICY = PluginChoice("spec_decode.policy", "fixed", FixedPolicyConfig())


def _drafter(**values: Any) -> SuffixDrafter:
    """Looks for two tokens and more, and drafts as many as it finds, but for `values`."""
    return SuffixDrafter(SuffixConfig(policy=POLICY, **{"min_match": 2, "drafts_per_match": 1.0, **values}))


def _proposal(
    drafter: SuffixDrafter,
    token_ids: Sequence[int],
    *,
    num_prompt: int = 1,
    name: str = "r",
    max_drafts: int = 8,
    chain_only: bool = False,
) -> Proposal:
    batch = DraftBatch([name], [np.array(token_ids, np.int32)], [num_prompt], [max_drafts], [chain_only])
    (proposal,) = drafter.propose(batch)
    return proposal


def test_drafts_are_as_many_as_the_match_is_long() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert _proposal(_drafter(), text).token_ids == (4, 5, 6)
    assert _proposal(_drafter(drafts_per_match=0.5), text).token_ids == (4,)
    assert _proposal(_drafter(drafts_per_match=2.0), text).token_ids == (4, 5, 6, 7, 8, 9)
    assert _proposal(_drafter(drafts_per_match=2.0), text, max_drafts=2).token_ids == (4, 5)
    assert _proposal(_drafter(max_match=2), text).token_ids == (4, 5)
    assert _proposal(_drafter(min_match=4), text).token_ids == ()


def test_trees_only_where_they_are_wanted_and_legal() -> None:
    text = [1, 2, 3, 0, 1, 2, 4, 9, 1, 2]
    assert _proposal(_drafter(tree=False), text).parents == ()
    tree = _proposal(_drafter(tree=True), text, max_drafts=2)
    assert (tree.token_ids, tree.parents) == ((4, 3), (-1, -1))
    chain = _proposal(_drafter(tree=True), text, max_drafts=2, chain_only=True)
    assert (chain.token_ids, chain.parents) == ((4, 9), ())


def test_what_ended_requests_said_is_found() -> None:
    drafter = _drafter()
    said = [7, 11, 12, 13, 14, 15]
    _proposal(drafter, said)
    assert _proposal(drafter, [8, 11, 12], name="other").token_ids == (), "the first one still runs"
    drafter.forget(["r", "unknown"])
    assert _proposal(drafter, [8, 11, 12], name="other").token_ids == (13, 14)
    # The longer match promises more, whoever said it.
    assert _proposal(drafter, [11, 12, 5, 6, 11, 12, 13], name="other").token_ids == (14, 15)
    assert _proposal(drafter, [9, 11, 12, 13, 3, 9, 11, 12, 13], name="other").token_ids == (3, 9, 11, 12)


def test_prompts_are_not_shared_but_for_their_end() -> None:
    drafter = _drafter(max_match=3)
    _proposal(drafter, [1, 2, 3, 4, 5, 6, 20, 21, 22], num_prompt=6)
    drafter.forget(["r"])
    assert _proposal(drafter, [9, 1, 2], name="other").token_ids == ()
    assert _proposal(drafter, [4, 5, 6], name="other").token_ids == (20, 21, 22)


def test_requests_are_kept_apart_without_shared_tokens() -> None:
    drafter = _drafter(shared_tokens=0)
    _proposal(drafter, [7, 11, 12, 13, 14, 15])
    drafter.forget(["r"])
    assert _proposal(drafter, [8, 11, 12], name="other").token_ids == ()


def test_a_request_that_draws_no_drafts_is_remembered_too() -> None:
    drafter = _drafter()
    assert _proposal(drafter, [7, 11, 12, 13, 14], max_drafts=0).token_ids == ()
    drafter.forget(["r"])
    assert _proposal(drafter, [8, 11, 12], name="other").token_ids == (13, 14)


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 40])
def test_shared_text_is_bounded_and_loses_the_oldest_first(max_tokens: int) -> None:
    shared = SharedText(max_tokens)
    for number in range(30):
        shared.add(np.full(number % 5, number, np.int32))
        assert len(shared.token_ids) <= max_tokens
        assert shared.token_ids[-1] == SEPARATOR
        kept = shared.token_ids[shared.token_ids != SEPARATOR]
        assert (np.diff(kept) >= 0).all(), "the order of the requests"
        assert shared.token_ids.base is None or len(shared.token_ids.base) <= max_tokens, "no memory behind the view"
    shared.add(np.arange(100, dtype=np.int32))
    assert shared.token_ids.tolist() == [*range(101 - max_tokens, 100), SEPARATOR]


def test_suffix_needs_nothing_of_the_target() -> None:
    assert _drafter().needs() == DrafterNeeds()


@pytest.mark.parametrize(
    "values",
    [
        {"min_match": 0},
        {"min_match": 2, "max_match": 1},
        {"max_match": 129},
        {"drafts_per_match": 0.0},
        {"min_probability": 1.5},
    ],
)
def test_suffix_config_refuses(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SuffixConfig(policy=POLICY, **values)


def test_suffix_config_names_both_ends_of_an_empty_range() -> None:
    with pytest.raises(ValidationError, match="max_match must be at least min_match=5, got 4"):
        SuffixConfig(policy=POLICY, min_match=5, max_match=4)
