"""Log-probabilities of sampled tokens and of the most likely ones, from the model's own distribution.

"Raw" values: log-softmax of the logits as the model gave them, before edits, constraints, temperature and filters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tokenloom.batch import TokenLogprobs
from tokenloom.sampling.batch import RowGroups
from tokenloom.sampling.filtering import rank_tokens

__all__ = ["SampleLogprobs", "raw_logprobs"]


@final
@dataclass(frozen=True, slots=True)
class SampleLogprobs:
    """Logprobs of L rows, on the device until `to_host` is called.

    Attributes:
        rows: L row numbers.
        num_top: per row, how many of the most likely tokens were asked for.
        token_ids: int64 [L, 1 + N], first the row's token, then the N most likely, best first; N is the largest of
            num_top.
        values: fp32 [L, 1 + N], their natural log-probabilities.
    """

    rows: tuple[int, ...]
    num_top: tuple[int, ...]
    token_ids: Tensor
    values: Tensor

    def to_host(self) -> dict[int, TokenLogprobs]:
        """Copies everything to the host: row -> logprobs, each with its own number of top tokens."""
        found: dict[int, TokenLogprobs] = {}
        for row, count, ids, values in zip(
            self.rows, self.num_top, self.token_ids.tolist(), self.values.tolist(), strict=True
        ):
            top = tuple(zip(ids[1 : count + 1], values[1 : count + 1], strict=True))
            found[row] = TokenLogprobs(token_id=ids[0], logprob=values[0], top=top)
        return found


def raw_logprobs(logits: Tensor, token_ids: Tensor, groups: RowGroups) -> SampleLogprobs | None:
    """Logprobs of the rows that asked for them; None if no row did.

    Args:
        logits: [R, V] of any float dtype, unprocessed.
        token_ids: int64 [R], the token of each row: sampled, or emitted after verification.
        groups: says which rows ask, and for how many.
    """
    if not groups.logprob_rows:
        return None
    rows = torch.tensor(groups.logprob_rows, dtype=torch.int64, device=logits.device)  # [L]
    logprobs = logits[rows].to(torch.float32).log_softmax(dim=-1)  # [L, V]
    ids = token_ids[rows].unsqueeze(1)  # [L, 1]
    num_top = min(max(groups.num_logprobs), logits.shape[1])
    if num_top > 0:
        # Log-probabilities are never above 0, as ranking demands.
        ids = torch.cat([ids, rank_tokens(logprobs, num_top)[0]], dim=1)  # [L, 1 + num_top]
    return SampleLogprobs(groups.logprob_rows, groups.num_logprobs, ids, logprobs.gather(1, ids))
