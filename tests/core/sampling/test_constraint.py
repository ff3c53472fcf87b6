"""Logits constraints over the rows of one step, with a stub that allows even tokens only."""

from __future__ import annotations

from typing import final

import pytest
import torch
from torch import Tensor

from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.sampling import (
    ConstrainedRows,
    SamplingBatch,
    SamplingRow,
    allowed_tokens,
    sample,
    target_probs,
    verify_chain,
    verify_rejection,
)
from tokenloom.sampling_params import SamplingParams

VOCAB = 10
END = 8


@final
class EvenTokens(LogitsConstraint):
    """Even tokens, none twice in a row; END ends."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def fork(self) -> EvenTokens:
        other = EvenTokens()
        other.tokens = list(self.tokens)
        return other

    def allowed_mask(self, out: Tensor) -> None:
        assert not self.is_terminated
        out.copy_(torch.arange(VOCAB) % 2 == 0)
        if self.tokens:
            out[self.tokens[-1]] = False

    def advance(self, token_id: int) -> bool:
        if token_id % 2 == 1 or token_id in self.tokens[-1:]:
            return False
        self.tokens.append(token_id)
        return True

    def rollback(self, num_tokens: int) -> None:
        assert 0 <= num_tokens <= len(self.tokens)
        del self.tokens[len(self.tokens) - num_tokens :]

    @property
    def is_terminated(self) -> bool:
        return self.tokens[-1:] == [END]


def masked_ids(mask: Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in mask]


def test_each_row_gets_the_mask_behind_its_drafts() -> None:
    constraint = EvenTokens()
    assert constraint.advance(6)
    found = allowed_tokens([ConstrainedRows(constraint, first_row=3, draft_token_ids=[2, 4])], VOCAB)
    assert found is not None
    assert found.rows.tolist() == [3, 4, 5]
    assert masked_ids(found.mask) == [[0, 2, 4, 8], [0, 4, 6, 8], [0, 2, 6, 8]]
    assert constraint.tokens == [6]


@pytest.mark.parametrize(
    ("drafts", "num_masked"), [([], 1), ([1], 1), ([2, 3, 4], 2), ([2, 2, 4], 2), ([END, 2], 1), ([2, END, 4], 2)]
)
def test_rows_that_cannot_be_reached_get_no_mask(drafts: list[int], num_masked: int) -> None:
    constraint = EvenTokens()
    found = allowed_tokens([ConstrainedRows(constraint, 0, drafts)], VOCAB)
    assert found is not None
    assert found.rows.tolist() == list(range(num_masked))
    assert found.mask.shape == (num_masked, VOCAB)
    assert constraint.tokens == []


def test_several_requests_keep_their_rows_apart() -> None:
    first, second, third = EvenTokens(), EvenTokens(), EvenTokens()
    second.advance(0)
    found = allowed_tokens(
        [ConstrainedRows(first, 0, [1, 2]), ConstrainedRows(second, 5, [2]), ConstrainedRows(third, 9)], VOCAB
    )
    assert found is not None
    assert found.rows.tolist() == [0, 5, 6, 9]
    assert masked_ids(found.mask) == [[0, 2, 4, 6, 8], [2, 4, 6, 8], [0, 4, 6, 8], [0, 2, 4, 6, 8]]


def test_no_constraints_give_no_masks() -> None:
    assert allowed_tokens([], VOCAB) is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafts", [[], [2], [2, 3, 4], [1, 2], [2, 2], [2, 4, 6]])
@pytest.mark.parametrize("verifier", ["noise", "rejection"])
def test_emitted_tokens_are_legal_whatever_was_drafted(temperature: float, drafts: list[int], verifier: str) -> None:
    for seed in range(20):
        constraint = EvenTokens()
        row = SamplingRow(SamplingParams(temperature=temperature), seed=seed)
        batch = SamplingBatch.build([row], VOCAB).select([0] * (len(drafts) + 1), list(range(len(drafts) + 1)))
        logits = torch.randn(len(drafts) + 1, VOCAB, generator=torch.Generator().manual_seed(seed))
        logits[:, END] = -20.0
        allowed = allowed_tokens([ConstrainedRows(constraint, 0, drafts)], VOCAB)
        draft_ids, cu_num_rows = torch.tensor(drafts, dtype=torch.int64), torch.tensor([0, len(drafts) + 1])
        if verifier == "noise":
            result = verify_chain(sample(logits, batch, allowed).token_ids, draft_ids, cu_num_rows)
        else:
            probs = target_probs(logits, batch, allowed).probs
            result = verify_rejection(probs, draft_ids, None, cu_num_rows, batch)
        for token_id in result.token_ids[result.is_emitted].tolist():
            assert constraint.advance(token_id)


def test_speculation_under_a_constraint_gives_the_tokens_of_no_speculation() -> None:
    batch = SamplingBatch.build([SamplingRow(SamplingParams(), seed=4)], VOCAB)
    model = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(6))
    model[:, END] = -20.0

    def run(num_drafts: int) -> list[int]:
        constraint, tokens = EvenTokens(), [0]
        while len(tokens) <= 30:
            drafts = [(tokens[-1] + 2 * i) % VOCAB for i in range(1, num_drafts + 1)]
            ahead = range(len(tokens) - 1, len(tokens) + num_drafts)
            step = batch.select([0] * (num_drafts + 1), list(ahead))
            allowed = allowed_tokens([ConstrainedRows(constraint, 0, drafts)], VOCAB)
            sampled = sample(model[[tokens[-1], *drafts]], step, allowed).token_ids
            result = verify_chain(sampled, torch.tensor(drafts, dtype=torch.int64), torch.tensor([0, num_drafts + 1]))
            for token_id in sampled[result.is_emitted].tolist():
                assert constraint.advance(token_id)
                tokens.append(token_id)
        return tokens[:31]

    assert run(0) == run(1) == run(4)


@final
class GivenUp(LogitsConstraint):
    """Allows everything at first and nothing behind it, and says why."""

    def __init__(self) -> None:
        self.num_tokens = 0

    def fork(self) -> GivenUp:
        return GivenUp()

    def allowed_mask(self, out: Tensor) -> None:
        out.fill_(self.num_tokens == 0)

    def advance(self, token_id: int) -> bool:
        self.num_tokens += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        self.num_tokens -= num_tokens

    @property
    def is_terminated(self) -> bool:
        return False

    @property
    def failure(self) -> str:
        return "too much" if self.num_tokens else ""


def test_rows_that_allow_nothing_come_with_what_the_constraint_says_of_them() -> None:
    requests = [ConstrainedRows(EvenTokens(), 2), ConstrainedRows(GivenUp(), 4, (1, 3))]
    allowed = allowed_tokens(requests, VOCAB)
    assert allowed is not None
    assert allowed.rows.tolist() == [2, 4, 5, 6]
    assert allowed.failures == {5: "too much", 6: "too much"}
