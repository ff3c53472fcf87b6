"""Chooses the drafts of several requests depth by depth from a drafter's logits: the most likely token, or a drawn one.

A request that samples gets tokens drawn with the noise that the target will use at the same positions: no other way of
drawing agrees with the target more often. A chain ends where it becomes unlikely, by the drafter's own probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from tokenloom.interfaces.spec_decode import DraftSampling, Proposal
from tokenloom.sampling.draft_sampler import DraftSampler

__all__ = ["ChainDrafts"]


@final
class ChainDrafts:
    """The chains of n requests in one call of `Drafter.propose`.

    Args:
        sampling: per request, how it samples.
        vocab_size: V of the target.
        device: of the logits.
        keeps_probs: whether proposals carry the probabilities that drafts were drawn from.
        column_ids: int64 [columns], the target's id for each column of the logits; None where columns are ids.
        min_probability: a draft whose chain is less likely than that is left out.
    """

    def __init__(
        self,
        sampling: Sequence[DraftSampling],
        vocab_size: int,
        device: torch.device,
        *,
        keeps_probs: bool = False,
        column_ids: Tensor | None = None,
        min_probability: float = 0.0,
    ) -> None:
        self._vocab_size = vocab_size
        self._column_ids = column_ids
        self._is_greedy = [row.params.temperature == 0.0 for row in sampling]
        self._sampler = None if all(self._is_greedy) else DraftSampler(sampling, vocab_size, device)
        self._keeps_probs = keeps_probs
        self._drafts: list[list[int]] = [[] for _ in sampling]
        self._probs: list[list[Tensor]] = [[] for _ in sampling]
        self._min_probability = min_probability
        self._likelihood = [1.0] * len(sampling)
        self._depth = 0

    def choose(self, logits: Tensor, live: Sequence[int]) -> Sequence[int]:
        """Adds the next draft of requests.

        Args:
            logits: [len(live), columns].
            live: indices of the requests, rising; of them, only such as got a draft every time before.

        Returns:
            Those of `live` that got one: whose chain is likely enough.
        """
        logits = logits[:, : self._vocab_size]  # columns beyond pad the drafter's vocabulary
        if self._sampler is None:
            best = logits.argmax(dim=-1)
            chosen = best if self._column_ids is None else self._column_ids[best]
            going = self._likely(live, logits, best)
        else:
            places = torch.tensor(live, device=logits.device)
            whole = self._over_vocabulary(logits, places)
            drawn = self._sampler.draw(whole, self._depth)
            chosen = drawn.token_ids[places]
            going = self._likely(live, whole[places], chosen)
            for request in going if self._keeps_probs else ():
                self._probs[request].append(drawn.probs[request])
        is_going = set(going)
        for request, token_id in zip(live, chosen.tolist(), strict=True):
            if request in is_going:
                self._drafts[request].append(token_id)
        self._depth += 1
        return going

    def last(self, request: int) -> int:
        """The latest draft of a request."""
        return self._drafts[request][-1]

    def drafts(self, request: int) -> list[int]:
        """All drafts of a request so far."""
        return self._drafts[request]

    def proposal(self, request: int) -> Proposal:
        """What a request is proposed. Greedy drafts were not drawn and count as one-hot."""
        probs = self._probs[request]
        is_drawn = bool(probs) and not self._is_greedy[request]
        return Proposal(tuple(self._drafts[request]), probs=torch.stack(probs) if is_drawn else None)

    def _likely(self, live: Sequence[int], logits: Tensor, columns: Tensor) -> Sequence[int]:
        """Those of `live` whose chains stay likely enough with their columns, int64 [n], of logits [n, columns]."""
        if self._min_probability == 0.0:
            return live
        logits = logits.float()
        log_probs = logits.gather(1, columns[:, None]).squeeze(1) - logits.logsumexp(dim=-1)  # [n]
        for request, probability in zip(live, log_probs.exp().tolist(), strict=True):
            self._likelihood[request] *= probability
        return [request for request in live if self._likelihood[request] >= self._min_probability]

    def _over_vocabulary(self, logits: Tensor, places: Tensor) -> Tensor:
        """fp32 [n, V]: rows of `places` hold the logits, -inf where the drafter has no column; the rest is not read."""
        whole = torch.zeros(len(self._drafts), self._vocab_size, dtype=torch.float32, device=logits.device)
        if self._column_ids is None and logits.shape[1] == self._vocab_size:
            whole[places] = logits.float()
            return whole
        whole[places] = float("-inf")
        columns = torch.arange(logits.shape[1], device=logits.device) if self._column_ids is None else self._column_ids
        whole[places[:, None], columns[None, :]] = logits.float()
        return whole
