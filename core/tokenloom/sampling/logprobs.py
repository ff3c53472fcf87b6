"""Log-probabilities of sampled and given tokens and of the most likely ones, from the model's own distribution.

"Raw" values: log-softmax of the logits as the model gave them, before edits, constraints, temperature and filters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tokenloom.batch import TokenLogprobs
from tokenloom.sampling.batch import RowGroups
from tokenloom.sampling.filtering import rank_tokens

__all__ = ["SampleLogprobs", "prompt_logprobs", "raw_logprobs"]

_MAX_LOGITS = 1 << 23
"""Logits that exist at once for the tokens of a prompt: 32 MiB in fp32, and as much again for their logprobs."""


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
        ranks: int64 [L], the place of the row's token among all V, 1 for the most likely one.
    """

    rows: tuple[int, ...]
    num_top: tuple[int, ...]
    token_ids: Tensor
    values: Tensor
    ranks: Tensor

    def to_host(self) -> dict[int, TokenLogprobs]:
        """Copies everything to the host: row -> logprobs, each with its own number of top tokens."""
        found: dict[int, TokenLogprobs] = {}
        for row, count, ids, values, rank in zip(
            self.rows,
            self.num_top,
            self.token_ids.tolist(),
            self.values.tolist(),
            self.ranks.tolist(),
            strict=True,
        ):
            top = tuple(zip(ids[1 : count + 1], values[1 : count + 1], strict=True))
            found[row] = TokenLogprobs(token_id=ids[0], logprob=values[0], top=top, rank=rank)
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
    found = _with_top(logits[rows], token_ids[rows], max(groups.num_logprobs))
    return SampleLogprobs(groups.logprob_rows, groups.num_logprobs, *found)


def prompt_logprobs(
    hidden: Tensor, token_ids: Tensor, num_top: int, vocab_size: int, compute_logits: Callable[[Tensor], Tensor]
) -> tuple[TokenLogprobs, ...]:
    """Logprobs of given tokens, each under the model's distribution at the position before it.

    Logits are computed a few rows at a time, so that memory does not grow with the prompt.

    Args:
        hidden: [n, hidden_size], final hidden states of the positions before the tokens.
        token_ids: int64 [n], on the same device.
        num_top: how many of the most likely tokens to report beside each.
        vocab_size: V.
        compute_logits: the model's head, hidden states -> logits [rows, V].
    """
    num_rows = max(1, _MAX_LOGITS // vocab_size)
    entries: list[TokenLogprobs] = []
    for start in range(0, len(hidden), num_rows):
        block = slice(start, start + num_rows)
        ids, values, ranks = _with_top(compute_logits(hidden[block]), token_ids[block], num_top)
        count = len(ids)
        found = SampleLogprobs(tuple(range(count)), (num_top,) * count, ids, values, ranks)
        entries += found.to_host().values()
    return tuple(entries)


def _with_top(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and logprobs [L, 1 + N] of each row's token, int64 [L], and of the N most likely ones; ranks [L]."""
    logprobs = logits.to(torch.float32).log_softmax(dim=-1)  # [L, V]
    ids = token_ids.unsqueeze(1)  # [L, 1]
    own = logprobs.gather(1, ids)  # [L, 1]
    # As `rank_tokens` orders them: of equal ones the lowest id comes first.
    is_before = torch.arange(logits.shape[1], device=logits.device) < ids  # [L, V]
    ranks = 1 + ((logprobs > own) | ((logprobs == own) & is_before)).sum(dim=-1)  # [L]
    num_top = min(num_top, logits.shape[1])
    if num_top > 0:
        # Log-probabilities are never above 0, as ranking demands.
        ids = torch.cat([ids, rank_tokens(logprobs, num_top)[0]], dim=1)  # [L, 1 + N]
    return ids, logprobs.gather(1, ids), ranks
