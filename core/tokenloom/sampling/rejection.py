"""The other verifier: classical rejection sampling with draft probabilities, exact in distribution.

A draft d, drawn from q, is accepted with probability min(1, p(d) / q(d)); at the first refusal the token is drawn from
the residual max(p - q, 0), normalised; if all are accepted a bonus token is drawn from the target. What is emitted is
distributed as the target's own samples, but a seed's tokens depend on the drafts: prefer `verify` where that matters.

Source: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding" (ICML 2023), appendix
A.1; Chen et al., "Accelerating large language model decoding with speculative sampling" (2023), algorithm 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokenloom.sampling.batch import SamplingBatch
from tokenloom.sampling.noise import Purpose, gumbel_noise, uniform_noise
from tokenloom.sampling.verify import RowLayout, Verification, accept_prefix, row_layout

__all__ = ["verify_rejection"]


def verify_rejection(
    target_probs: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    cu_num_rows: Tensor,
    batch: SamplingBatch,
) -> Verification:
    """Verifies chains; layout of rows and drafts as in `verify`.

    Args:
        target_probs: fp32 [R, V], from `sampler.target_probs`: after temperature, filters and masks. Rows without a
            distribution (NaN) accept nothing and yield some token id below V.
        draft_token_ids: int64 [R - B], each 0..V-1.
        draft_probs: fp32 [R - B, V], the distribution that each draft was really drawn from, in the precision it was
            drawn with; None when drafts were chosen without chance (one-hot).
        cu_num_rows: int64 [B + 1], starts of the requests' rows, then R.
        batch: settings of the R rows; only the keys of the noise are read.

    Returns:
        `token_ids` holds the accepted drafts, and at `last_row` the residual's or bonus token.
    """
    num_drafts = draft_token_ids.shape[0]
    layout = row_layout(target_probs.shape[0], cu_num_rows)
    judge_row = layout.draft_row - 1  # [R - B], the row that decides on each draft
    p = target_probs[judge_row, draft_token_ids]  # [R - B]
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(1, draft_token_ids.unsqueeze(1)).squeeze(1)
    coin = uniform_noise(*batch.noise_keys(judge_row), Purpose.ACCEPT)  # [R - B]
    # Strictly: what the target excludes is never accepted, and p >= q always is (the coin is below 1). A draft that its
    # own distribution calls impossible was not drawn from it: refused.
    is_accepted = (coin * q < p) & (q > 0.0)
    token_ids = torch.zeros_like(layout.row)  # [R]
    token_ids[judge_row] = draft_token_ids
    verification = accept_prefix(token_ids, is_accepted, layout)
    last_row = verification.last_row
    residual = target_probs[last_row]  # [B, V]
    if num_drafts > 0:
        residual = _without_draft(residual, draft_token_ids, draft_probs, layout, last_row)
    noise = gumbel_noise(*batch.noise_keys(last_row), Purpose.RESIDUAL, target_probs.shape[1])  # [B, V]
    token_ids[last_row] = (residual.log() + noise).argmax(dim=-1)
    return verification


def _without_draft(
    probs: Tensor, draft_token_ids: Tensor, draft_probs: Tensor | None, layout: RowLayout, last_row: Tensor
) -> Tensor:
    """max(p - q, 0), not normalised, where the last row refused a draft; p where it had none: fp32 [B, V]."""
    num_drafts = draft_token_ids.shape[0]
    draft_of_row = torch.full_like(layout.row, num_drafts)  # [R]; num_drafts stands for no draft
    draft_of_row[layout.draft_row - 1] = torch.arange(num_drafts, device=probs.device)
    draft = draft_of_row[last_row]  # [B]
    has_draft = (draft < num_drafts).unsqueeze(1)  # [B, 1]
    draft = draft.clamp(max=num_drafts - 1)
    if draft_probs is None:
        residual = probs.scatter(1, draft_token_ids[draft].unsqueeze(1), 0.0)
    else:
        residual = probs - draft_probs[draft]
        # Whatever a drafter claims (NaN, numbers below 0): no token that the target excludes.
        residual = torch.where((residual > 0.0) & (probs > 0.0), residual, 0.0)
    # p = q up to rounding can refuse a draft and leave nothing: any distribution near p is right then.
    is_empty = residual.sum(dim=-1, keepdim=True) <= 0.0  # [B, 1]
    return torch.where(has_draft & ~is_empty, residual, probs)
