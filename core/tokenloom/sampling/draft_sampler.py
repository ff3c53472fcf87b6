"""For drafters that sample: draws drafts with the noise that the target will sample the same positions with.

The two then agree with a probability of at least (1 - d) / (1 + d), d the total variation distance of their
distributions; no two draws can do so more often than 1 - d. Both verifiers stay exact.

Source: Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative decoding" (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tokenloom.interfaces.spec_decode import DraftSampling
from tokenloom.sampling.batch import SamplingBatch, SamplingRow
from tokenloom.sampling.noise import Purpose, gumbel_noise
from tokenloom.sampling.sampler import choice_probs

__all__ = ["DraftSampler", "DrawnDrafts"]


@final
@dataclass(frozen=True, slots=True)
class DrawnDrafts:
    """One draft for each of B requests.

    Attributes:
        token_ids: int64 [B].
        probs: fp32 [B, V], what they were drawn from; one-hot for greedy requests. Stacked over the depths these are
            `Proposal.probs`.
    """

    token_ids: Tensor
    probs: Tensor


@final
class DraftSampler:
    """Draws for the requests of one `DraftBatch`, depth after depth.

    Example:
        >>> sampler = DraftSampler(batch.sampling, vocab_size=V, device=device)  # doctest: +SKIP
        >>> first = sampler.draw(draft_logits, depth=0)  # doctest: +SKIP
    """

    def __init__(self, sampling: Sequence[DraftSampling], vocab_size: int, device: torch.device | str = "cpu") -> None:
        """Of the params, temperature, top_k, top_p and min_p are honoured: what needs no look at earlier tokens."""
        rows = [SamplingRow(row.params, row.seed, row.choice, row.position) for row in sampling]
        self._batch = SamplingBatch.build(rows, vocab_size, device)

    def draw(self, logits: Tensor, depth: int) -> DrawnDrafts:
        """Draws one token for each request.

        Args:
            logits: the drafter's own, [B, V] of any float dtype.
            depth: drafts before this one, from 0; the same for all.
        """
        batch = self._batch
        # Without `process_logits`: penalties, biases and masks are the target's business.
        probs = choice_probs(logits.to(torch.float32), batch).probs  # [B, V]
        noise = gumbel_noise(batch.seeds, batch.choice, batch.position + depth, Purpose.SAMPLE, batch.vocab_size)
        return DrawnDrafts((probs.log() + noise).argmax(dim=-1), probs)
