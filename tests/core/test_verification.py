"""The verifier of a step: both kinds, mixed batches, and what becomes of the draft probabilities between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
from torch import Tensor

from tokenloom import verification
from tokenloom.batch import RowPlan, TokenLogprobs
from tokenloom.interfaces.spec_decode import Proposal, Verifier
from tokenloom.sampling import AllowedTokens, SamplingBatch, SamplingRow, target_probs, verify_rejection
from tokenloom.sampling.history import RowHistory, TokenHistory
from tokenloom.sampling_params import SamplingParams
from tokenloom.verification import DraftVerification, StepLogits, VerifiedRows

VOCAB = 12
SAMPLED = SamplingParams(temperature=0.9, logprobs=2)
GREEDY = SamplingParams(temperature=0.0, logprobs=0)


@dataclass(frozen=True)
class Asked:
    """One request of a step: what it was proposed, and how many of the drafts the plan kept."""

    name: str
    params: SamplingParams = SAMPLED
    drafts: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probs: Tensor | None = None
    seed: int = 0
    is_penalized: bool = False

    @property
    def row(self) -> RowPlan:
        return RowPlan(self.name, 5, 1 + len(self.drafts), self.drafts, (), True, draft_parents=self.parents)

    @property
    def logits(self) -> Tensor:
        return torch.randn(1 + len(self.drafts), VOCAB, generator=torch.Generator().manual_seed(self.seed)) * 1.5


def probs_of(seed: int, num_drafts: int) -> Tensor:
    return torch.randn(num_drafts, VOCAB, generator=torch.Generator().manual_seed(seed)).softmax(dim=-1)


def step_of(requests: Sequence[Asked], masked: Sequence[tuple[int, int]] = ()) -> StepLogits:
    """`masked`: (row, the only token that it allows)."""
    counts = [1 + len(request.drafts) for request in requests]
    rows = [SamplingRow(request.params, request.seed, position=3) for request in requests]
    owners = [index for index, count in enumerate(counts) for _ in range(count)]
    batch = SamplingBatch.build(rows, VOCAB).select(owners, [i for count in counts for i in range(count)])
    starts = [0, *accumulate(counts)]
    histories = [
        RowHistory(starts[index] + i, TokenHistory(request.params, [1, 2, 3], 2, []), request.drafts[:i])
        for index, request in enumerate(requests)
        for i in range(counts[index])
        if request.is_penalized
    ]
    allowed = None
    if masked:
        tokens = torch.tensor([token for _, token in masked])
        allowed = AllowedTokens(torch.tensor([row for row, _ in masked]), torch.eye(VOCAB).bool()[tokens])
    logits = torch.cat([request.logits for request in requests])
    return StepLogits([request.row for request in requests], starts, logits, batch.with_tokens(histories), allowed)


def run(verifier: Verifier, requests: Sequence[Asked], masked: Sequence[tuple[int, int]] = ()) -> VerifiedRows:
    """One step, after the requests' proposals."""
    verification = DraftVerification(verifier)
    verification.keep({r.name: Proposal(r.drafts, r.parents, r.probs) for r in requests})
    return verification.verify(step_of(requests, masked))


Outcome = tuple[list[int], list[bool], list[TokenLogprobs]]


def outcome(verified: VerifiedRows, first: int, end: int) -> Outcome:
    """Emitted tokens of rows first..end - 1, their invalid marks, and logprobs."""
    rows = [row for row in range(first, end) if verified.is_emitted is None or verified.is_emitted[row]]
    logprobs = [verified.logprobs[row] for row in rows if row in verified.logprobs]
    return [verified.token_ids[row] for row in rows], [verified.invalid[row] for row in rows], logprobs


def everything() -> list[Asked]:
    penalties = SAMPLED.with_changes(repetition_penalty=1.5, frequency_penalty=1.0)
    return [
        Asked("drawn", SAMPLED, (1, 2, 3), probs=probs_of(11, 3), seed=1),
        Asked("greedy", GREEDY, (4, 5), probs=probs_of(12, 2), seed=2),
        Asked("no_drafts", SAMPLED, seed=3),
        Asked("one_hot", SAMPLED, (6, 7), seed=4),
        Asked("penalized", penalties, (2, 3), probs=probs_of(13, 2), seed=5, is_penalized=True),
        Asked("greedy_alone", GREEDY, seed=6),
        Asked("penalized_alone", penalties, seed=7, is_penalized=True),
        Asked("no_logprobs", SAMPLED.with_changes(logprobs=None, top_k=3), (0,), probs=probs_of(14, 1), seed=8),
    ]


@pytest.mark.parametrize("verifier", ["position_noise", "rejection"])
@pytest.mark.parametrize("seed_shift", range(0, 60, 10))
def test_a_request_alone_equals_the_request_in_a_mixed_batch(verifier: Verifier, seed_shift: int) -> None:
    requests = [Asked(**{**vars(r), "seed": r.seed + seed_shift}) for r in everything()]
    together = run(verifier, requests)
    first = 0
    for request in requests:
        end = first + 1 + len(request.drafts)
        alone = run(verifier, [request])
        assert outcome(together, first, end) == outcome(alone, 0, end - first), request.name
        tokens, _, logprobs = outcome(alone, 0, end - first)
        wants_logprobs = request.params.logprobs is not None
        assert [entry.token_id for entry in logprobs] == (tokens if wants_logprobs else [])
        first = end


def test_requests_without_chance_or_drafts_are_the_same_under_both_verifiers() -> None:
    requests = [r for r in everything() if r.params.is_greedy or not r.drafts]
    assert run("position_noise", requests) == run("rejection", requests)


def test_greedy_steps_compute_no_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("probabilities of a step in which nothing is drawn")

    monkeypatch.setattr(verification, "choice_probs", refuse)
    run("rejection", [r for r in everything() if r.params.is_greedy or not r.drafts])
    with pytest.raises(AssertionError, match="nothing is drawn"):
        run("rejection", everything())


def expected(request: Asked, probs: Tensor | None) -> Outcome:
    """From `verify_rejection` itself."""
    step = step_of([request])
    target = target_probs(step.logits, step.batch).probs
    found = verify_rejection(target, torch.tensor(request.drafts), probs, torch.tensor(step.cu_rows), step.batch)
    return found.token_ids[found.is_emitted].tolist(), [], []


SEEDS = range(40)


def test_drafts_that_were_cut_keep_their_own_probabilities() -> None:
    for seed in SEEDS:
        probs = probs_of(seed, 4)
        verifier = DraftVerification("rejection")
        verifier.keep({"r": Proposal((3, 1, 4, 1), probs=probs)})
        request = Asked("r", SAMPLED, (3, 1), seed=seed)
        found = verifier.verify(step_of([request]))
        assert outcome(found, 0, 3)[0] == expected(request, probs[:2])[0]


def test_probabilities_serve_once_and_are_forgotten() -> None:
    """After the step that used them, or when the request left, equal drafts count as one-hot."""
    differing = 0
    for seed in SEEDS:
        probs = probs_of(seed, 2)
        request = Asked("r", SAMPLED, (3, 1), seed=seed)
        one_hot, drawn = expected(request, None)[0], expected(request, probs)[0]
        differing += one_hot != drawn
        verifier = DraftVerification("rejection")
        verifier.keep({"r": Proposal((3, 1), probs=probs)})
        assert outcome(verifier.verify(step_of([request])), 0, 3)[0] == drawn
        assert outcome(verifier.verify(step_of([request])), 0, 3)[0] == one_hot
        verifier.keep({"r": Proposal((3, 1), probs=probs)})
        verifier.forget(["r", "unknown"])
        assert outcome(verifier.verify(step_of([request])), 0, 3)[0] == one_hot
    assert differing > 5, "the two ways gave the same tokens: nothing was told apart"


def test_a_step_that_verifies_none_of_the_drafts_drops_their_probabilities() -> None:
    verifier = DraftVerification("rejection")
    verifier.keep({"r": Proposal((3, 1), probs=probs_of(1, 2))})
    verifier.verify(step_of([Asked("r")]))
    # Other drafts than were proposed would now be our bug.
    verifier.verify(step_of([Asked("r", SAMPLED, (7, 8))]))


def test_other_drafts_than_were_proposed_are_our_bug() -> None:
    verifier = DraftVerification("rejection")
    verifier.keep({"r": Proposal((3, 1), probs=probs_of(1, 2))})
    with pytest.raises(AssertionError, match=r"r verifies \(1,\), proposed were \(3, 1\)"):
        verifier.verify(step_of([Asked("r", SAMPLED, (1,))]))


@pytest.mark.parametrize("verifier", ["position_noise", "rejection"])
def test_masks_follow_their_rows_into_a_mixed_batch(verifier: Verifier) -> None:
    requests = [Asked("a", GREEDY, (5,)), Asked("b", SAMPLED, (9, 2), probs=probs_of(1, 2)), Asked("c")]
    # Rows: a 0..1, b 2..4, c 5. Row 3 follows draft 9, which the mask of row 2 demands.
    found = run(verifier, requests, masked=[(0, 8), (2, 9), (3, 4), (5, 6)])
    assert outcome(found, 0, 2)[0] == [8]
    assert outcome(found, 2, 5)[0] == [9, 4]
    assert outcome(found, 5, 6)[0] == [6]


@pytest.mark.parametrize("verifier", ["position_noise", "rejection"])
def test_row_without_a_distribution_is_marked_where_it_stands(verifier: Verifier) -> None:
    requests = [Asked("a", GREEDY), Asked("b", SAMPLED, (1,), probs=probs_of(1, 1)), Asked("c", GREEDY, (2,))]
    step = step_of(requests)
    step.logits[1] = torch.nan
    verifier_of = DraftVerification(verifier)
    verifier_of.keep({"b": Proposal((1,), probs=probs_of(1, 1))})
    found = verifier_of.verify(step)
    assert found.invalid == [False, True, False, False, False]
    assert outcome(found, 1, 3)[1] == [True]


def test_only_rejection_sampling_takes_no_trees() -> None:
    assert DraftVerification("position_noise").takes_trees
    assert not DraftVerification("rejection").takes_trees
