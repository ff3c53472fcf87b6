"""Builds the tensors of one step from a plan, in numpy, without Python work per token.

request b:   rows cu[b] .. cu[b+1]        own tokens | drafts
             slot index  num_computed + 0, 1, 2, ...            (where K and V are stored)
             position    the same for own tokens and chains; num_computed + own + depth for tree nodes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch

from tokenloom.batch import RowPlan, StepPlan, tree_depths
from tokenloom.batch_state import BatchState
from tokenloom.interfaces.attention import AttentionBatch

__all__ = ["StepInputs", "StepInputsBuilder"]

_Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step's inputs on the device.

    Attributes:
        token_ids, positions: int64 [T].
        attention: one batch per KV group.
        logits_rows: int64 [R], rows of the hidden states that need logits; R counts 1 + drafts per sampling request.
        sampling_ids: requests that sample, in batch order.
        num_logits_rows: per sampling request, 1 + its drafts.
        logits_offsets: per logits row, output positions ahead of the request's next one (a node's depth).
        first_rows: host int64 [B], first row of every request of the plan.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attention: tuple[AttentionBatch, ...]
    logits_rows: torch.Tensor
    sampling_ids: tuple[str, ...]
    num_logits_rows: tuple[int, ...]
    logits_offsets: tuple[int, ...]
    first_rows: _Int64


@dataclass(frozen=True, slots=True)
class _Rows:
    """Host arrays of a step: per request [B] its row, first slot and new tokens, cumulated [B + 1]; per token [T]."""

    row_ids: _Int64
    starts: _Int64
    counts: _Int64
    cu: _Int64
    token_rows: _Int64
    slot_index: _Int64


@final
class StepInputsBuilder:
    """Holds the persistent buffers that every step's tensors are views of."""

    def __init__(
        self,
        state: BatchState,
        windows: Sequence[int | None],
        max_num_tokens: int,
        max_num_seqs: int,
        device: torch.device,
    ) -> None:
        """`windows` holds the window of each of the target's KV groups; the maxima size the buffers."""
        self._state = state
        self._windows = tuple(windows)
        # A drafter's groups come behind the target's; its own passes read those.
        self._own_tables = state.block_tables[: len(self._windows)]
        self._device = device
        self._token_ids = _Buffer(max_num_tokens, torch.int64, device)
        self._positions = _Buffer(max_num_tokens, torch.int64, device)
        self._slots = [_Buffer(max_num_tokens, torch.int64, device) for _ in self._own_tables]
        self._cu_seqlens = _Buffer(max_num_seqs + 1, torch.int32, device)
        self._seq_lens = _Buffer(max_num_seqs, torch.int32, device)
        self._tables = [_Buffer(table.size, torch.int32, device) for table in self._own_tables]

    def build(self, plan: StepPlan) -> StepInputs:
        """Builds the inputs of a plan whose rows the state knows already."""
        state, rows = self._state, plan.rows
        row_ids = np.array(state.rows(rows), np.int64)  # [B]
        starts = np.array([row.num_computed_tokens for row in rows], np.int64)  # [B]
        counts = np.array([row.num_scheduled_tokens for row in rows], np.int64)  # [B]
        cu = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=cu[1:])
        has_drafts = any(row.draft_token_ids for row in rows)
        if has_drafts:
            _store_drafts(state, rows, row_ids)
        token_rows = np.repeat(row_ids, counts)  # [T]
        slot_index = np.arange(cu[-1]) - np.repeat(cu[:-1] - starts, counts)  # [T]
        tree_mask = self._tree_mask(rows, cu) if has_drafts else None
        positions = self._positions.write(slot_index if tree_mask is None else _tree_positions(rows, cu, slot_index))
        sampling = [(row, end) for row, end in zip(rows, cu[1:].tolist(), strict=True) if row.samples]
        num_logits_rows, logits_offsets = (1,) * len(sampling), (0,) * len(sampling)
        logits_rows = np.array([end - 1 for _, end in sampling], np.int64)
        if has_drafts:
            num_logits_rows = tuple(1 + len(row.draft_token_ids) for row, _ in sampling)
            logits_offsets = tuple(depth for row, _ in sampling for depth in _depths(row))
            spans = zip(sampling, num_logits_rows, strict=True)
            logits_rows = np.array([i for (_, end), count in spans for i in range(end - count, end)], np.int64)
        return StepInputs(
            token_ids=self._token_ids.write(state.token_ids[token_rows, slot_index]),
            positions=positions,
            attention=self._attention(_Rows(row_ids, starts, counts, cu, token_rows, slot_index), positions, tree_mask),
            logits_rows=torch.from_numpy(logits_rows).to(self._device),
            sampling_ids=tuple([row.request_id for row, _ in sampling]),
            num_logits_rows=num_logits_rows,
            logits_offsets=logits_offsets,
            first_rows=cu[:-1],
        )

    def _attention(
        self, rows: _Rows, positions: torch.Tensor, tree_mask: torch.Tensor | None
    ) -> tuple[AttentionBatch, ...]:
        """One batch per KV group; what does not depend on the group is shared."""
        block_size = self._state.block_size
        cu_seqlens = self._cu_seqlens.write(rows.cu)
        seq_lens = rows.starts + rows.counts
        seq_lens_tensor = self._seq_lens.write(seq_lens)
        query_lens_cpu, seq_lens_cpu = rows.counts.tolist(), seq_lens.tolist()
        block_index, offset = np.divmod(rows.slot_index, block_size)
        num_blocks = -(-int(seq_lens.max()) // block_size)
        groups = zip(self._own_tables, self._tables, self._slots, self._windows, strict=True)
        return tuple(
            AttentionBatch(
                cu_seqlens_q=cu_seqlens,
                seq_lens=seq_lens_tensor,
                positions=positions,
                block_table=buffer.write(table[rows.row_ids, :num_blocks]),
                slot_mapping=slots.write(table[rows.token_rows, block_index].astype(np.int64) * block_size + offset),
                tree_mask=tree_mask,
                query_lens_cpu=query_lens_cpu,
                seq_lens_cpu=seq_lens_cpu,
                window=window,
            )
            for table, buffer, slots, window in groups
        )

    def _tree_mask(self, rows: Sequence[RowPlan], cu: _Int64) -> torch.Tensor | None:
        """[T, max query length]: causal among own tokens; a tree node sees them, its ancestors and itself."""
        if not any(row.draft_parents for row in rows):
            return None
        widest = max(row.num_scheduled_tokens for row in rows)
        mask = np.zeros((int(cu[-1]), widest), np.bool_)
        for row, first in zip(rows, cu[:-1].tolist(), strict=True):
            count = row.num_scheduled_tokens
            block = mask[first : first + count, :count]
            block[:] = np.tri(count, dtype=np.bool_)
            num_own = count - len(row.draft_token_ids)
            for node, parent in enumerate(row.draft_parents):
                line = block[num_own + node]
                line[num_own:] = block[num_own + parent, num_own:] if parent >= 0 else False
                line[num_own + node] = True
        return torch.from_numpy(mask).to(self._device)


def _store_drafts(state: BatchState, rows: Sequence[RowPlan], row_ids: _Int64) -> None:
    """Writes the drafts behind the verified tokens, where the gather finds them; the next tokens overwrite them."""
    for row, row_id in zip(rows, row_ids.tolist(), strict=True):
        if row.draft_token_ids:
            end = row.num_computed_tokens + row.num_scheduled_tokens
            state.token_ids[row_id, end - len(row.draft_token_ids) : end] = row.draft_token_ids


def _depths(row: RowPlan) -> list[int]:
    """Output positions ahead of the next one: 0 for the last own token's row, then each draft's depth."""
    if not row.draft_parents:
        return list(range(1 + len(row.draft_token_ids)))
    return [0, *tree_depths(row.draft_parents)]


def _tree_positions(rows: Sequence[RowPlan], cu: _Int64, slot_index: _Int64) -> _Int64:
    positions = slot_index.copy()
    for row, end in zip(rows, cu[1:].tolist(), strict=True):
        if row.draft_parents:
            depths = np.array(_depths(row)[1:], np.int64)
            last_own = end - len(depths) - 1
            positions[end - len(depths) : end] = positions[last_own] + depths
    return positions


@final
class _Buffer:
    """A preallocated tensor on the device, with a host side that numpy writes to; on the CPU both are one."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._host = torch.zeros(size, dtype=dtype, pin_memory=is_cuda)
        self._numpy = self._host.numpy()
        self._tensor = torch.zeros(size, dtype=dtype, device=device) if is_cuda else self._host

    def write(self, values: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> torch.Tensor:
        """Copies an array in and returns the view of it, in its shape, on the device."""
        count = values.size
        self._numpy[:count] = values.reshape(-1)
        view = self._tensor[:count]
        if self._tensor is not self._host:
            # The host side is free again by the next step: its results are read back before that.
            view.copy_(self._host[:count], non_blocking=True)
        return view.view(values.shape)
