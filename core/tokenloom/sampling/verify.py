"""The default verifier: a draft is accepted if it equals the token that the target samples at its position anyway.

Every row is sampled with its own position's noise, drafts or no drafts. So what is emitted is token for token what the
target would have said alone: exact for any drafter, for chains and trees, and a seed's result does not depend on
speculation.

Rows of one request with k drafts lie one after the other: row 0 (the root) samples the token after the last verified
one, row 1 + i the token after draft i. Different k, also 0, may share a batch::

    rows      [a0 a1 a2 | b0 | c0 c1]      cu_num_rows      [0, 3, 4, 6]
    drafts    [   a1 a2 |    |    c1]      flattened        [a1, a2, c1], at rows [1, 2, 5]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

__all__ = ["RowLayout", "Verification", "accept_prefix", "row_layout", "verify_chain", "verify_tree"]


@final
@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome for B requests with R rows in all. Nothing here made the host wait.

    Attributes:
        token_ids: int64 [R], the token that a row yields if it is emitted.
        is_emitted: bool [R]. A request's emitted rows in order give its new tokens, `num_accepted_tokens` + 1 of them.
            In a tree they are the root's row and those of the accepted nodes.
        num_accepted_tokens: int64 [B], how many drafts were accepted.
        last_row: int64 [B], the last emitted row: its token is the next step's input.
    """

    token_ids: Tensor
    is_emitted: Tensor
    num_accepted_tokens: Tensor
    last_row: Tensor


@final
@dataclass(frozen=True, slots=True)
class RowLayout:
    """Where rows and drafts belong.

    Attributes:
        first_row: int64 [B], each request's root row.
        row: int64 [R], 0..R-1.
        request: int64 [R], index of the row's request.
        draft_row: int64 [R - B], the row of each draft. In a chain, the row before it decides on the draft.
    """

    first_row: Tensor
    row: Tensor
    request: Tensor
    draft_row: Tensor


def row_layout(num_rows: int, cu_num_rows: Tensor) -> RowLayout:
    """Works out the layout of R rows.

    Args:
        num_rows: R, known to the host.
        cu_num_rows: int64 [B + 1], starts of the requests' rows, then R. Each request has at least one row.
    """
    device = cu_num_rows.device
    num_requests = cu_num_rows.shape[0] - 1
    row = torch.arange(num_rows, device=device)  # [R]
    draft = torch.arange(num_rows - num_requests, device=device)  # [R - B]
    # Up to and including its own, each request has one row that belongs to no draft.
    cu_num_drafts = cu_num_rows - torch.arange(num_requests + 1, device=device)  # [B + 1]
    return RowLayout(
        first_row=cu_num_rows[:-1],
        row=row,
        request=torch.searchsorted(cu_num_rows[1:], row, right=True),
        draft_row=draft + torch.searchsorted(cu_num_drafts[1:], draft, right=True) + 1,
    )


def verify_chain(sampled_token_ids: Tensor, draft_token_ids: Tensor, cu_num_rows: Tensor) -> Verification:
    """Accepts the drafts of each request up to the first that differs from the target's sample.

    Args:
        sampled_token_ids: int64 [R], the target's own sample at every row.
        draft_token_ids: int64 [R - B], chains of all requests, flattened.
        cu_num_rows: int64 [B + 1], starts of the requests' rows, then R.
    """
    layout = row_layout(sampled_token_ids.shape[0], cu_num_rows)
    is_accepted = sampled_token_ids[layout.draft_row - 1] == draft_token_ids  # [R - B]
    return accept_prefix(sampled_token_ids, is_accepted, layout)


def accept_prefix(token_ids: Tensor, is_accepted: Tensor, layout: RowLayout) -> Verification:
    """Emits each request's rows up to the one that refuses its draft, or that has none.

    Args:
        token_ids: int64 [R], what each row yields.
        is_accepted: bool [R - B], the verdict on each draft by itself.
        layout: of chains.
    """
    num_rows = layout.row.shape[0]
    goes_on = torch.zeros_like(layout.row, dtype=torch.bool)  # [R]
    goes_on[layout.draft_row - 1] = is_accepted
    stops = layout.row.masked_fill(goes_on, num_rows)  # [R]
    last_row = torch.full_like(layout.first_row, num_rows).scatter_reduce(0, layout.request, stops, "amin")  # [B]
    return Verification(
        token_ids=token_ids,
        is_emitted=layout.row <= last_row[layout.request],
        num_accepted_tokens=last_row - layout.first_row,
        last_row=last_row,
    )


def verify_tree(
    sampled_token_ids: Tensor, draft_token_ids: Tensor, draft_parents: Tensor, cu_num_rows: Tensor
) -> Verification:
    """Walks each request's tree from its root: at a row with sample s, on to the child whose token is s.

    Of several children with the same token the first counts.

    Args:
        sampled_token_ids: int64 [R], the target's own sample after the root (row 0) and after every node.
        draft_token_ids: int64 [R - B], the nodes' tokens, flattened; parents come before their children.
        draft_parents: int64 [R - B], index of each node's parent among its request's nodes, -1 for a child of the root.
        cu_num_rows: int64 [B + 1], starts of the requests' rows, then R.
    """
    num_rows = sampled_token_ids.shape[0]
    layout = row_layout(num_rows, cu_num_rows)
    row, draft_row = layout.row, layout.draft_row
    parent_row = layout.first_row[layout.request[draft_row]] + 1 + draft_parents  # [R - B]
    is_match = sampled_token_ids[parent_row] == draft_token_ids  # [R - B]
    first_match = torch.full_like(row, num_rows).scatter_reduce(
        0, parent_row, draft_row.masked_fill(~is_match, num_rows), "amin"
    )  # [R], the child that each row goes on to, if any
    is_emitted = torch.ones_like(row, dtype=torch.bool)  # [R]; so far: whether the row's parent goes on to it
    is_emitted[draft_row] = first_match[parent_row] == draft_row
    ancestor = row.clone()  # [R]; the root is its own parent
    ancestor[draft_row] = parent_row
    # A node counts only if all its ancestors do. The reach of `ancestor` doubles each time: log2(depth) rounds.
    for _ in range(num_rows.bit_length()):
        is_emitted = is_emitted & is_emitted[ancestor]
        ancestor = ancestor[ancestor]
    # Parents come first, so the deepest accepted node is the last one.
    last_row = layout.first_row.scatter_reduce(0, layout.request, row.masked_fill(~is_emitted, 0), "amax")  # [B]
    num_emitted = torch.zeros_like(last_row).scatter_add(0, layout.request, is_emitted.to(torch.int64))
    return Verification(sampled_token_ids, is_emitted, num_emitted - 1, last_row)
