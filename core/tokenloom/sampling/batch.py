"""The sampling settings of one step's logits rows, as tensors that stay in place while the batch composition does.

Built once when requests join or leave. Per step only `position` moves (in place), or `select` lays the rows out anew
when some requests do not sample or have several rows to verify.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from tokenloom.sampling.edits import LogitEdits, RowEdits, row_edits
from tokenloom.sampling.history import HistoryEdits, RowHistory, history_edits
from tokenloom.sampling.processors import StepProcessors
from tokenloom.sampling_params import SamplingParams

__all__ = ["RowGroups", "RowTraits", "SamplingBatch", "SamplingRow"]


@final
@dataclass(frozen=True, slots=True)
class SamplingRow:
    """How one request samples. May be kept for as long as it runs.

    Attributes:
        params: what the user asked for.
        seed: 64-bit seed of the request's noise.
        choice: index of the choice within the request.
        position: output index of the token to sample: the number of output tokens so far.
        forbidden_stop_ids: token ids that cannot be chosen while position < params.min_tokens.
        bad_token_ids: token ids that cannot be chosen at all (bad words of one token).
        edits: what these and the params change in logits, or None.
    """

    params: SamplingParams
    seed: int
    choice: int = 0
    position: int = 0
    forbidden_stop_ids: tuple[int, ...] = ()
    bad_token_ids: tuple[int, ...] = ()
    edits: RowEdits | None = field(init=False)

    def __post_init__(self) -> None:
        stop_ids = self.forbidden_stop_ids if self.params.min_tokens > self.position else ()
        object.__setattr__(self, "edits", row_edits(self.params, stop_ids, self.bad_token_ids))


@final
@dataclass(frozen=True, slots=True)
class RowTraits:
    """Host copy of what selects a row's path.

    Attributes:
        is_greedy: draws no noise.
        is_ranked: top_k or top_p is on.
        top_k: 1..V, V is off.
        num_logprobs: most likely tokens to report; None reports nothing.
    """

    is_greedy: bool
    is_ranked: bool
    top_k: int
    num_logprobs: int | None


@final
@dataclass(frozen=True, slots=True)
class RowGroups:
    """Which rows take which path. Chosen from host data alone; no path changes a row's token.

    Attributes:
        greedy_rows, plain_rows, ranked_rows: int64 indices of rows that draw no noise, that draw over the vocabulary,
            and that first rank their tokens; each row is in exactly one, and each list ascends.
        max_top_k: largest top_k among the ranked rows; the vocabulary size if one of them has none.
        logprob_rows: rows that want logprobs, on the host; `num_logprobs` says how many each.
        num_logprobs: see `logprob_rows`.
    """

    greedy_rows: Tensor
    plain_rows: Tensor
    ranked_rows: Tensor
    max_top_k: int
    logprob_rows: tuple[int, ...]
    num_logprobs: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Settings of R logits rows. All tensors are on the logits' device; `position` may be updated in place.

    Attributes:
        vocab_size: V, width of the logits.
        temperature: fp32 [R, 1]; 1 where the row is greedy.
        top_k: int64 [R, 1] in 1..V; V is off.
        top_p: fp32 [R, 1]; 1 is off.
        min_p: fp32 [R, 1]; 0 is off.
        seeds: int64 [R], the 64 bits of each seed.
        choice: int64 [R].
        position: int64 [R], output index of the token that the row samples.
        edits: changes of single logits that the settings fix; None if there are none.
        history: changes that depend on the tokens so far, of this step alone; None if there are none.
        processors: calls of logits processors, of this step alone; None if there are none.
        traits: R host copies of what selects a path.
        groups: rows by path.
    """

    vocab_size: int
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    choice: Tensor
    position: Tensor
    edits: LogitEdits | None
    traits: tuple[RowTraits, ...]
    groups: RowGroups
    history: HistoryEdits | None = None
    processors: StepProcessors | None = None

    @classmethod
    def build(cls, rows: Sequence[SamplingRow], vocab_size: int, device: torch.device | str = "cpu") -> SamplingBatch:
        """Lays out one row for each of `rows`, in their order."""
        params = [row.params for row in rows]
        traits = tuple(_traits(row.params, vocab_size) for row in rows)

        def column(values: list[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)  # [R, 1]

        def vector(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)  # [R]

        return cls(
            vocab_size=vocab_size,
            temperature=column([1.0 if t.is_greedy else p.temperature for p, t in zip(params, traits)], torch.float32),
            top_k=vector([trait.top_k for trait in traits]).unsqueeze(1),
            top_p=column([p.top_p for p in params], torch.float32),
            min_p=column([p.min_p for p in params], torch.float32),
            seeds=vector([row.seed for row in rows]),
            choice=vector([row.choice for row in rows]),
            position=vector([row.position for row in rows]),
            edits=LogitEdits.build([row.edits for row in rows], vocab_size, device),
            traits=traits,
            groups=_groups(traits, device),
        )

    @property
    def num_rows(self) -> int:
        return len(self.traits)

    def select(self, rows: Sequence[int], offsets: Sequence[int]) -> SamplingBatch:
        """Lays out the rows of one step: some requests sample nothing, one with k drafts has 1 + k rows.

        Args:
            rows: per new row, the row of this batch whose settings it takes.
            offsets: per new row, how far its position is ahead: 0 for the first, the node's depth for a draft's row.

        Returns:
            A batch of len(rows) rows. Its tensors are copies.
        """
        assert len(rows) == len(offsets), f"{len(rows)} rows but {len(offsets)} offsets"
        has_tokens = self.history is not None or self.processors is not None
        assert not (has_tokens and any(offsets)), "rows that know their tokens cannot be moved ahead"
        device = self.seeds.device
        index = torch.tensor(rows, dtype=torch.int64, device=device)  # [len(rows)]
        ahead = torch.tensor(offsets, dtype=torch.int64, device=device)  # [len(rows)]
        traits = tuple(self.traits[row] for row in rows)
        return SamplingBatch(
            vocab_size=self.vocab_size,
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            min_p=self.min_p[index],
            seeds=self.seeds[index],
            choice=self.choice[index],
            position=self.position[index] + ahead,
            edits=None if self.edits is None else self.edits.select(rows, self.vocab_size),
            traits=traits,
            groups=_groups(traits, device),
            history=None if self.history is None else self.history.select(rows, self.vocab_size),
            processors=None if self.processors is None else self.processors.select(rows),
        )

    def with_tokens(
        self, histories: Sequence[RowHistory] = (), processors: StepProcessors | None = None
    ) -> SamplingBatch:
        """This batch with what depends on the tokens so far; shares its tensors.

        Args:
            histories: of the rows whose requests use penalties or bad words of several tokens.
            processors: what logits processors do in this step.
        """
        return replace(
            self, history=history_edits(histories, self.vocab_size, self.seeds.device), processors=processors
        )

    @property
    def changes_logits(self) -> bool:
        """Whether any row's logits are changed before temperature."""
        return self.edits is not None or self.history is not None or self.processors is not None

    def noise_keys(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(seeds, choice, position) of some rows, int64 each: the first arguments of the functions in `noise`."""
        return self.seeds[rows], self.choice[rows], self.position[rows]


def _traits(params: SamplingParams, vocab_size: int) -> RowTraits:
    top_k = min(params.top_k, vocab_size) if params.top_k > 0 else vocab_size
    return RowTraits(
        is_greedy=params.is_greedy,
        is_ranked=not params.is_greedy and (top_k < vocab_size or params.top_p < 1.0),
        top_k=top_k,
        num_logprobs=params.logprobs,
    )


def _groups(traits: Sequence[RowTraits], device: torch.device | str) -> RowGroups:
    def indices(rows: list[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=device)

    greedy: list[int] = []
    plain: list[int] = []
    ranked: list[int] = []
    num_logprobs: dict[int, int] = {}
    for row, trait in enumerate(traits):  # once a step: one cheap pass
        (greedy if trait.is_greedy else ranked if trait.is_ranked else plain).append(row)
        if trait.num_logprobs is not None:
            num_logprobs[row] = trait.num_logprobs
    return RowGroups(
        greedy_rows=indices(greedy),
        plain_rows=indices(plain),
        ranked_rows=indices(ranked),
        max_top_k=max((traits[row].top_k for row in ranked), default=0),
        logprob_rows=tuple(num_logprobs),
        num_logprobs=tuple(num_logprobs.values()),
    )
