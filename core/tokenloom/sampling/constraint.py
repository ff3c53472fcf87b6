"""Applies logits constraints to the rows of one step: each verified position gets the mask that its drafts lead to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from tokenloom.interfaces.logits import LogitsConstraint

__all__ = ["AllowedTokens", "ConstrainedRows", "allowed_tokens"]


@final
@dataclass(frozen=True, slots=True)
class ConstrainedRows:
    """The logits rows of one constrained request in a step.

    Attributes:
        constraint: its state stands at the last token that entered the request.
        first_row: row that samples the token after it; the rows of the drafts follow, in order.
        draft_token_ids: k drafts of a chain.
    """

    constraint: LogitsConstraint
    first_row: int
    draft_token_ids: Sequence[int] = ()


@final
@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """Masks for some rows of a step: rows int64 [C], mask bool [C, V]; True may be sampled.

    `failures` says of rows in which nothing may be sampled why that is, where the constraint knows.
    """

    rows: Tensor
    mask: Tensor
    failures: Mapping[int, str] = field(default_factory=dict)


def allowed_tokens(
    requests: Sequence[ConstrainedRows], vocab_size: int, device: torch.device | str = "cpu"
) -> AllowedTokens | None:
    """Asks the constraints of one step for their masks; leaves their states as they were.

    Rows behind an illegal draft get no mask: the row before it cannot sample that draft, so they are never reached. The
    same holds behind a draft that completes the grammar.

    Args:
        requests: the constrained requests of the step.
        vocab_size: V.
        device: where the masks go.

    Returns:
        The masks, or None if there are none.
    """
    if not requests:
        return None
    num_rows = sum(1 + len(request.draft_token_ids) for request in requests)
    mask = torch.zeros(num_rows, vocab_size, dtype=torch.bool)  # [num_rows, V], on the host
    rows: list[int] = []
    failures: dict[int, str] = {}
    for request in requests:
        for ahead in range(_write_masks(request, mask[len(rows) :], failures)):
            rows.append(request.first_row + ahead)
    return AllowedTokens(
        rows=torch.tensor(rows, dtype=torch.int64, device=device),  # [C]
        mask=mask[: len(rows)].to(device),  # [C, V]
        failures=failures,
    )


def _write_masks(request: ConstrainedRows, mask: Tensor, failures: dict[int, str]) -> int:
    """Writes the masks of the rows that can be reached, and returns how many these are; fills in `failures`."""
    constraint = request.constraint
    num_advanced = 0

    def write_mask() -> None:
        constraint.allowed_mask(mask[num_advanced])
        if failure := constraint.failure:
            failures[request.first_row + num_advanced] = failure

    write_mask()
    try:
        for token_id in request.draft_token_ids:
            if not constraint.advance(token_id):
                break
            num_advanced += 1
            if constraint.is_terminated:
                break
            write_mask()
    finally:
        is_terminated = constraint.is_terminated
        constraint.rollback(num_advanced)
    return num_advanced if is_terminated else num_advanced + 1
