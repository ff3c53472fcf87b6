"""What the rows of a step that sampled have yielded, on the host, and which states belong to verified tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

from tokenloom.batch import RowPlan, RowResult, TokenLogprobs
from tokenloom.interfaces.spec_decode import Proposal

__all__ = ["SampledRows", "num_verified", "row_result", "verified_states"]


@final
@dataclass(frozen=True, slots=True)
class SampledRows:
    """Host outcome of the rows that sampled, by request id."""

    token_ids: dict[str, list[int]]
    logprobs: dict[str, tuple[TokenLogprobs, ...]]
    errors: dict[str, str]
    """Per request that failed, why no token can be sampled."""
    accepted_rows: dict[str, list[int]]
    """Per request with drafts, the emitted logits rows counted from its own first one; 0 is the last own token."""

    def goes_on(self, request_id: str) -> bool:
        """Whether a request has a new token and no error, so that drafts behind it make sense."""
        return bool(self.token_ids.get(request_id)) and request_id not in self.errors


def num_verified(row: RowPlan, sampled: SampledRows) -> int:
    """A request's verified new tokens: its own ones, then the accepted drafts."""
    num_own = row.num_scheduled_tokens - len(row.draft_token_ids)
    accepted = sampled.accepted_rows.get(row.request_id)
    return num_own if accepted is None else num_own + max(0, len(accepted) - 1)


def verified_states(
    rows: Sequence[RowPlan],
    first_rows: Sequence[int],
    num_tokens: int,
    sampled: SampledRows,
    captured: Mapping[int, torch.Tensor],
) -> Mapping[int, torch.Tensor]:
    """Of each layer captured, the hidden rows of the verified new tokens, `num_tokens` in all, of some of the step's
    rows, which come in the order of the plan; `first_rows` has the first hidden row of each."""
    if not captured:
        return {}
    some = next(iter(captured.values()))
    # In most steps no drafts were verified, and all that ran is wanted.
    if num_tokens == len(some) and not sampled.accepted_rows:
        return captured
    wanted = [
        index for row, first in zip(rows, first_rows, strict=True) for index in _verified_rows(row, first, sampled)
    ]
    gather = torch.tensor(wanted, dtype=torch.int64, device=some.device)
    return {layer: states.index_select(0, gather) for layer, states in captured.items()}


def _verified_rows(row: RowPlan, first: int, sampled: SampledRows) -> Sequence[int]:
    """Rows of the hidden states of a request's verified new tokens: its own ones, then the accepted drafts."""
    num_own = row.num_scheduled_tokens - len(row.draft_token_ids)
    own = range(first, first + num_own)
    accepted = sampled.accepted_rows.get(row.request_id)
    return own if accepted is None else [*own, *(first + num_own - 1 + node for node in accepted[1:])]


def row_result(
    row: RowPlan, sampled: SampledRows, proposals: dict[str, Proposal], prompt: tuple[TokenLogprobs, ...]
) -> RowResult:
    """What a row of the plan came to."""
    request_id = row.request_id
    if not row.samples:
        return RowResult(request_id, [], prompt_logprobs=prompt)
    error = sampled.errors.get(request_id)
    token_ids = sampled.token_ids[request_id]
    # The last token is no draft, unless the row that would have yielded it failed.
    num_accepted = len(token_ids) - (error is None)
    proposal = proposals.get(request_id, Proposal())
    return RowResult(
        request_id=request_id,
        token_ids=token_ids,
        num_accepted_tokens=num_accepted if row.draft_token_ids else 0,
        next_draft_token_ids=proposal.token_ids,
        next_draft_parents=proposal.parents,
        logprobs=sampled.logprobs.get(request_id, ()),
        prompt_logprobs=prompt,
        error=error,
    )
