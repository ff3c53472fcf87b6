"""From one step's logits to the tokens that each request emits: sampling, and the verifier that the config chose.

Greedy requests and those without drafts take the same path under both verifiers, so that their tokens depend neither on
the choice nor on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import final

import torch
from torch import Tensor

from tokenloom.batch import RowPlan, TokenLogprobs
from tokenloom.interfaces.spec_decode import Proposal, Verifier
from tokenloom.ops.sampling_table import TORCH_SAMPLING, SamplingOps
from tokenloom.sampling.batch import SamplingBatch
from tokenloom.sampling.constraint import AllowedTokens
from tokenloom.sampling.logprobs import raw_logprobs
from tokenloom.sampling.processing import process_logits
from tokenloom.sampling.rejection import verify_rejection
from tokenloom.sampling.sampler import choice_probs

__all__ = ["DraftVerification", "StepLogits", "VerifiedRows"]


@final
@dataclass(frozen=True, slots=True)
class StepLogits:
    """The logits rows of a step, and how they sample.

    Attributes:
        rows: the requests, all of which sample; each has 1 + its drafts logits rows, one request after another.
        cu_rows: [len(rows) + 1], starts of the requests' logits rows, then R.
        logits: [R, V].
        batch: settings of the R rows.
        allowed: masks of the rows under a logits constraint.
    """

    rows: Sequence[RowPlan]
    cu_rows: Sequence[int]
    logits: Tensor
    batch: SamplingBatch
    allowed: AllowedTokens | None


@final
@dataclass(frozen=True, slots=True)
class VerifiedRows:
    """What R logits rows yield, on the host.

    Attributes:
        token_ids: the token of each row, if it is emitted.
        is_emitted: per row; None if all are. A request's emitted rows in order give its new tokens.
        invalid: per row, whether it has no distribution (NaN, or nothing allowed).
        logprobs: of the rows that asked.
    """

    token_ids: list[int]
    is_emitted: list[bool] | None
    invalid: list[bool]
    logprobs: Mapping[int, TokenLogprobs]


@final
class DraftVerification:
    """Samples and verifies each step. Keeps the draft probabilities from their proposal to the step that needs them."""

    def __init__(self, verifier: Verifier, ops: SamplingOps = TORCH_SAMPLING) -> None:
        self._ops = ops
        self._is_rejection = verifier == "rejection"
        self._proposals: dict[str, Proposal] = {}

    @property
    def takes_trees(self) -> bool:
        """Whether a draft tree can be verified."""
        return not self._is_rejection

    def keep(self, proposals: Mapping[str, Proposal]) -> None:
        """Remembers the probabilities of drafts that the next step of their requests may verify."""
        if self._is_rejection:
            self._proposals.update({i: proposal for i, proposal in proposals.items() if proposal.probs is not None})

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops what belongs to requests that ended or were preempted."""
        for request_id in request_ids:
            self._proposals.pop(request_id, None)

    def verify(self, step: StepLogits) -> VerifiedRows:
        """Samples every row and decides which are emitted; uses up the probabilities of the requests' drafts."""
        processed = process_logits(step.logits, step.batch, step.allowed)  # fp32 [R, V]
        judged = self._judged_by_rejection(step)
        proposals = [self._proposals.pop(row.request_id, None) for row in step.rows]
        if not judged:
            token_ids, invalid = self._ops.choose_tokens(processed, step.batch)
            is_emitted = _matching_rows(self._ops, token_ids, step.rows, step.cu_rows)
        else:
            token_ids, is_emitted, invalid = _verify_mixed(self._ops, step, processed, judged, proposals)
        logprobs = raw_logprobs(step.logits, token_ids, step.batch.groups)
        return VerifiedRows(
            token_ids=token_ids.tolist(),
            is_emitted=None if is_emitted is None else is_emitted.tolist(),
            invalid=invalid.tolist(),
            logprobs={} if logprobs is None else logprobs.to_host(),
        )

    def _judged_by_rejection(self, step: StepLogits) -> list[int]:
        """Indices of the requests that have drafts and chance."""
        if not self._is_rejection:
            return []
        traits = step.batch.traits
        return [
            index
            for index, (row, first) in enumerate(zip(step.rows, step.cu_rows, strict=False))
            if row.draft_token_ids and not traits[first].is_greedy
        ]


def _matching_rows(
    ops: SamplingOps, token_ids: Tensor, rows: Sequence[RowPlan], cu_rows: Sequence[int]
) -> Tensor | None:
    """Compares samples (int64 [R]) and drafts: bool [R]; None when no request has drafts, so that every row counts."""
    if len(token_ids) == len(rows):
        return None
    starts, drafts = torch.tensor(cu_rows, dtype=torch.int64, device=token_ids.device), _draft_ids(rows, token_ids)
    if not any(row.draft_parents for row in rows):
        return ops.verify_chain(token_ids, drafts, starts).is_emitted
    parents = [p for row in rows for p in (row.draft_parents or range(-1, len(row.draft_token_ids) - 1))]
    return ops.verify_tree(token_ids, drafts, torch.tensor(parents, device=token_ids.device), starts).is_emitted


def _verify_mixed(
    ops: SamplingOps,
    step: StepLogits,
    processed: Tensor,
    judged: Sequence[int],
    proposals: Sequence[Proposal | None],
) -> tuple[Tensor, Tensor, Tensor]:
    """Rejection sampling for the requests `judged`, comparison for the others: tokens, emitted and invalid rows [R]."""
    others = sorted(set(range(len(step.rows))) - set(judged))
    token_ids = torch.empty(len(processed), dtype=torch.int64, device=processed.device)
    is_emitted = torch.ones(len(processed), dtype=torch.bool, device=processed.device)
    invalid = torch.empty_like(is_emitted)
    for requests in (judged, others):
        part = _Part.of(step, processed, requests)
        if requests is judged:
            target = choice_probs(part.processed, part.batch)
            starts, drafts = torch.tensor(part.cu_rows, device=processed.device), _draft_ids(part.rows, token_ids)
            draft_probs = _draft_probs(part.rows, [proposals[index] for index in requests], processed)
            result = verify_rejection(target.probs, drafts, draft_probs, starts, part.batch)
            token_ids[part.places], invalid[part.places] = result.token_ids, target.invalid
            is_emitted[part.places] = result.is_emitted
        elif requests:
            chosen, invalid[part.places] = ops.choose_tokens(part.processed, part.batch)
            token_ids[part.places] = chosen
            matching = _matching_rows(ops, chosen, part.rows, part.cu_rows)
            if matching is not None:
                is_emitted[part.places] = matching
    return token_ids, is_emitted, invalid


@final
@dataclass(frozen=True, slots=True)
class _Part:
    """The logits rows of some requests of a step: `places` int64 [P] in the whole, then as in `StepLogits`."""

    places: Tensor
    rows: Sequence[RowPlan]
    cu_rows: Sequence[int]
    processed: Tensor
    batch: SamplingBatch

    @classmethod
    def of(cls, step: StepLogits, processed: Tensor, requests: Sequence[int]) -> _Part:
        """Copies out the rows of `requests`. What changes logits has been done and is left out of `batch`."""
        counts = [step.cu_rows[index + 1] - step.cu_rows[index] for index in requests]
        places = [row for index in requests for row in range(step.cu_rows[index], step.cu_rows[index + 1])]
        index = torch.tensor(places, dtype=torch.int64, device=processed.device)
        rows = [step.rows[index] for index in requests]
        batch = step.batch.select(places, [0] * len(places))
        return cls(index, rows, [0, *accumulate(counts)], processed[index], batch)


def _draft_ids(rows: Sequence[RowPlan], like: Tensor) -> Tensor:
    """All drafts, int64 [R - B], on the device of `like`."""
    return torch.tensor([i for row in rows for i in row.draft_token_ids], dtype=torch.int64, device=like.device)


def _draft_probs(rows: Sequence[RowPlan], proposals: Sequence[Proposal | None], like: Tensor) -> Tensor | None:
    """What each draft was drawn from, fp32 [R - B, V], one-hot where nothing was said; None if nothing was at all.

    `like` gives V and the device.
    """
    if all(proposal is None for proposal in proposals):
        return None
    parts: list[Tensor] = []
    for row, proposal in zip(rows, proposals, strict=True):
        num_drafts = len(row.draft_token_ids)
        if proposal is None or proposal.probs is None:
            one_hot = torch.zeros(num_drafts, like.shape[1], dtype=torch.float32, device=like.device)
            parts.append(one_hot.scatter_(1, _draft_ids([row], like).unsqueeze(1), 1.0))
        else:
            # The drafts may have been cut on their way, but are no others.
            is_prefix = proposal.token_ids[:num_drafts] == row.draft_token_ids
            assert is_prefix, f"{row.request_id} verifies {row.draft_token_ids}, proposed were {proposal.token_ids}"
            parts.append(proposal.probs[:num_drafts])
    return torch.cat(parts)
