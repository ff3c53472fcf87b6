"""Calls a drafter as the model runner does, step after step, without a model: for tests of the contract alone.

A `DraftScript` is the life of one request: its tokens, and how many of them were verified at each step. Hidden states
are numbers made from the tokens, so that equal tokens have equal ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch

from tokenloom.interfaces.draft_memory import DraftKVGroup
from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DraftSampling,
    LayerParts,
    Proposal,
)
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.lent_memory import LentMemory
from tokenloom.testing.tiny_decoder import TinyDecoder

__all__ = ["Asked", "DraftDriver", "DraftScript", "drafts_of", "same_drafts", "scripts"]

_TARGET_KV = DraftKVGroup(
    TinyDecoder.num_layers, TinyDecoder.num_kv_heads, TinyDecoder.head_dim, num_heads=TinyDecoder.num_heads
)
_ROOM = 8
"""Slots behind a request's tokens: where the core stores drafts that it is verifying."""


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """One request of one call: all its verified tokens, and what is wanted."""

    request_id: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    max_drafts: int
    chain_only: bool
    sampling: DraftSampling


@final
@dataclass(frozen=True, slots=True)
class DraftScript:
    """One request.

    Attributes:
        request_id: its id.
        token_ids: all its tokens in the end.
        lengths: per step, how many of them are verified; rising, the first is the prompt and one token.
        max_drafts: per step.
        temperature: 0 for a greedy request.
    """

    request_id: str
    token_ids: tuple[int, ...]
    lengths: tuple[int, ...]
    max_drafts: tuple[int, ...]
    temperature: float = 0.0

    def asked(self, step: int, *, chain_only: bool = True) -> Asked:
        """The request as it is asked about in a step."""
        num_prompt_tokens = self.lengths[0] - 1
        length = self.lengths[step]
        params = SamplingParams(temperature=self.temperature, max_tokens=None)
        sampling = DraftSampling(params, sum(self.token_ids), 0, length - num_prompt_tokens)
        tokens = self.token_ids[:length]
        return Asked(self.request_id, tokens, num_prompt_tokens, self.max_drafts[step], chain_only, sampling)


def scripts(vocab_size: int, count: int = 4, num_steps: int = 8, seed: int = 0) -> list[DraftScript]:
    """Requests whose text repeats itself with breaks in it; some end earlier than others.

    Draft lengths are 0, 1, 3 and 5 and change every step. Every second request samples. All use the same few tokens,
    each in an order of its own, so that what leaks from one to another shows.
    """
    shuffle = random.Random(seed)
    num_distinct = min(vocab_size, 12)
    made: list[DraftScript] = []
    for index in range(count):
        period = [shuffle.randrange(num_distinct) for _ in range(3 + index % 4)]
        tokens = [
            period[i % len(period)] if shuffle.random() < 0.85 else shuffle.randrange(num_distinct) for i in range(90)
        ]
        lengths = [2 + 3 * index]
        for _ in range(num_steps - 1 - (0, 3, 1, 0)[index % 4]):
            lengths.append(lengths[-1] + shuffle.randint(1, 5))
        limits = tuple((0, 1, 3, 5)[(index + step) % 4] for step in range(len(lengths)))
        temperature = 0.0 if index % 2 == 0 else 1.0
        made.append(DraftScript(f"r{index}", tuple(tokens), tuple(lengths), limits, temperature))
    return made


@final
class DraftDriver:
    """One drafter and what it was told so far."""

    def __init__(
        self, drafter: Drafter, context: DrafterContext, *, is_poisoned: bool = False, filler: int = 0
    ) -> None:
        """Drives `drafter`.

        Args:
            drafter: built for `context`.
            context: sizes of the target.
            is_poisoned: overwrite the tokens after each call, as a row is that another request takes over.
            filler: token id that lies behind the tokens, where the core keeps drafts that it is verifying.
        """
        self._drafter = drafter
        self._context = context
        needs = drafter.needs()
        self._layers = needs.hidden_layers
        self._uses_target = needs.target_kv
        groups = (_TARGET_KV,) if needs.target_kv else needs.kv_groups
        self._memory = LentMemory(groups, context) if groups else None
        self._is_poisoned = is_poisoned
        self._filler = filler
        self._seen: dict[str, int] = {}

    def propose(self, asked: Sequence[Asked]) -> list[Proposal]:
        """Asks about some requests; the proposals are not checked.

        Raises:
            AssertionError: the drafter wrote to the tokens, or does not answer each request.
        """
        buffers = [self._buffer(request) for request in asked]
        views = [buffer[: len(request.token_ids)] for buffer, request in zip(buffers, asked, strict=True)]
        for view in views:
            view.flags.writeable = False
        firsts = [min(self._seen.get(request.request_id, 0), len(request.token_ids) - 1) for request in asked]
        rows = [_hidden_rows(request.token_ids, first) for request, first in zip(asked, firsts, strict=True)]
        cu_hidden = np.zeros(len(asked) + 1, np.int64)
        np.cumsum([len(part) for part in rows], out=cu_hidden[1:])
        batch = DraftBatch(
            request_ids=[request.request_id for request in asked],
            token_ids=views,
            num_prompt_tokens=[request.num_prompt_tokens for request in asked],
            max_drafts=[request.max_drafts for request in asked],
            chain_only=[request.chain_only for request in asked],
            first_positions=firsts,
            hidden_states={layer: self._hidden(rows, layer) for layer in self._layers},
            cu_hidden=cu_hidden,
            sampling=[request.sampling for request in asked],
            memory=None if self._memory is None else self._memory.memory,
        )
        if self._memory is not None:
            self._memory.join(batch.request_ids)
        if self._uses_target:
            self._run_target(batch)
        proposals = list(self._drafter.propose(batch))
        assert len(proposals) == len(asked), f"{len(proposals)} proposals for {len(asked)} requests"
        for request, buffer in zip(asked, buffers, strict=True):
            self._seen[request.request_id] = len(request.token_ids) - 1
            expected = (*request.token_ids, *[self._filler] * _ROOM)
            assert tuple(buffer.tolist()) == expected, f"{request.request_id}: propose() wrote to its tokens"
            if self._is_poisoned:
                buffer[:] = (buffer * 3 + 1) % self._context.vocab_size
        return proposals

    def forget(self, *request_ids: str) -> None:
        """Tells the drafter that requests ended or were preempted."""
        self._drafter.forget(request_ids)
        if self._memory is not None:
            self._memory.leave(request_ids)
        for request_id in request_ids:
            self._seen.pop(request_id, None)

    def play(self, requests: Sequence[DraftScript], *, is_reversed: bool = False) -> dict[str, list[Proposal]]:
        """Runs requests side by side, each step one call; returns their proposals per step. Ids are forgotten last."""
        found: dict[str, list[Proposal]] = {request.request_id: [] for request in requests}
        order = list(reversed(requests)) if is_reversed else list(requests)
        for step in range(max(len(request.lengths) for request in requests)):
            live = [request for request in order if step < len(request.lengths)]
            proposals = self.propose([request.asked(step) for request in live])
            for request, proposal in zip(live, proposals, strict=True):
                found[request.request_id].append(proposal)
        self.forget(*found)
        return found

    def _run_target(self, batch: DraftBatch) -> None:
        """Writes the target's keys and values of the new verified tokens, as its forward pass has done by then."""
        layers, memory, cu = self._context.target_layers, batch.memory, batch.cu_hidden
        assert layers is not None, "the context lends no layers of a target"
        assert memory is not None, "the driver gives memory"
        assert cu is not None, "the driver tells how many tokens are new"
        counts = np.diff(cu).tolist()
        rows = [row for row, count in enumerate(counts) if count]
        if not rows:
            return
        starts, new = [batch.first_positions[row] for row in rows], [counts[row] for row in rows]
        spans = zip(rows, starts, new, strict=True)
        tokens = np.concatenate([batch.token_ids[row][start : start + count] for row, start, count in spans])
        draft_pass = memory.begin([batch.request_ids[row] for row in rows], starts, new)
        everything = (True,) * self._context.num_layers
        layers.run(torch.from_numpy(tokens.astype(np.int64)), draft_pass, LayerParts(everything, everything))

    def _buffer(self, asked: Asked) -> npt.NDArray[np.int32]:
        return np.array((*asked.token_ids, *[self._filler] * _ROOM), np.int32)

    def _hidden(self, rows: Sequence[Sequence[int]], layer: int) -> torch.Tensor:
        """[R, hidden_size]: a function of each row's number and the layer."""
        keys = torch.tensor([key for part in rows for key in part], dtype=torch.float64).unsqueeze(1)  # [R, 1]
        columns = torch.arange(1, self._context.hidden_size + 1, dtype=torch.float64)
        return torch.sin(keys * 0.37 + columns * (layer + 2)).to(self._context.dtype)


def _hidden_rows(token_ids: Sequence[int], first: int) -> list[int]:
    """A number for each verified token of the step: of the tokens up to it. The last token has not run yet."""
    return [sum(token_ids[: end + 1]) * 7 + end for end in range(first, len(token_ids) - 1)]


def drafts_of(proposals: Sequence[Proposal]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(token ids, parents) of each proposal: what failure messages show."""
    return [(tuple(proposal.token_ids), tuple(proposal.parents)) for proposal in proposals]


def same_drafts(first: Sequence[Proposal], second: Sequence[Proposal]) -> bool:
    """Whether proposals are equal: ids and parents exactly, probabilities up to rounding."""
    if drafts_of(first) != drafts_of(second):
        return False
    for one, other in zip(first, second, strict=True):
        if (one.probs is None) != (other.probs is None):
            return False
        if one.probs is not None and other.probs is not None and not torch.allclose(one.probs, other.probs, atol=1e-5):
            return False
    return True
