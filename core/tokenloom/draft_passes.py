"""The KV memory that a drafter's layers run on: builds the inputs of each of its passes from the engine's block tables.

A pass is small and there are several in a step, so everything is made by numpy for all requests at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from tokenloom.batch import tree_depths
from tokenloom.batch_state import BatchState
from tokenloom.errors import PluginContractError
from tokenloom.host_blocks import StoredLayer
from tokenloom.interfaces.attention import AttentionBackend, AttentionBatch
from tokenloom.interfaces.draft_memory import DraftMemory, DraftPass
from tokenloom.interfaces.executor import KVGroupSpec

__all__ = ["DraftPasses"]


@final
class DraftPasses(DraftMemory):
    """The memory of one drafter, for all requests.

    Args:
        state: holds the block tables.
        groups: the drafter's KV groups as the engine numbers them.
        attention: made for the drafter's heads.
        kv: cache tensors of the drafter's layers, the layers of the first group first.
        plugin: names the drafter in errors.
    """

    def __init__(
        self,
        state: BatchState,
        groups: Sequence[KVGroupSpec],
        attention: AttentionBackend,
        kv: Sequence[Sequence[torch.Tensor]],
        plugin: str,
    ) -> None:
        self._state = state
        self._groups = tuple(groups)
        self._attention = attention
        self._kv = kv
        self._plugin = plugin
        self._device = kv[0][0].device

    @property
    def stored_layers(self) -> tuple[StoredLayer, ...]:
        """Every layer with the group whose blocks it is stored in."""
        group_of_layer = [group.group_id for group in self._groups for _ in group.layers]
        return tuple(
            StoredLayer(group, self._attention, kv) for group, kv in zip(group_of_layer, self._kv, strict=True)
        )

    def begin(
        self,
        request_ids: Sequence[str],
        starts: Sequence[int],
        counts: Sequence[int],
        parents: Sequence[Sequence[int]] = (),
    ) -> DraftPass:
        state, size = self._state, self._state.block_size
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        # As few calls as can be: for one request this takes longer than the layer's own products.
        if min(counts, default=0) < 1 or min(starts) < 0 or max(ends) > size * state.block_tables[0].shape[1]:
            self._refuse(f"starts {list(starts)} and counts {list(counts)} of requests {list(request_ids)}")
        num_blocks = -(-max(ends) // size)
        rows = np.array([state.row(request_id) for request_id in request_ids], np.int64)  # [n]
        cu, token_rows, slot_index = _spread(rows, starts, counts)
        block_index, offset = slot_index // size, slot_index % size
        positions, tree_mask = self._tensor(slot_index), None
        if parents:
            if [len(own) for own in parents] != list(counts):
                self._refuse(f"parents {parents} for counts {list(counts)}")
            depths = [depth for own in parents for depth in tree_depths(own)]  # from 1 on
            positions = self._tensor(np.repeat(np.array(starts, np.int64), counts) + np.array(depths, np.int64) - 1)
            tree_mask = self._tensor(_tree_mask(parents))
        cu_seqlens, seq_lens = self._tensor(cu), self._tensor(np.array(ends, np.int32))
        metadata = []
        for group in self._groups:
            table = state.block_tables[group.group_id]
            block_ids = table[token_rows, block_index]  # [T]
            if not block_ids.all():
                token = int(np.flatnonzero(block_ids == 0)[0])
                owner = request_ids[int(np.searchsorted(cu, token, side="right")) - 1]
                self._refuse(f"slot {slot_index[token]} of {owner}")
            batch = AttentionBatch(
                cu_seqlens_q=cu_seqlens,
                seq_lens=seq_lens,
                positions=positions,
                block_table=self._tensor(table[rows, :num_blocks]),
                slot_mapping=self._tensor(block_ids * np.int64(size) + offset),
                tree_mask=tree_mask,
                query_lens_cpu=list(counts),
                seq_lens_cpu=ends,
                window=group.window,
            )
            metadata.append(self._attention.prepare(batch))
        return DraftPass(positions, self._attention, tuple(metadata), self._kv)

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)

    def _refuse(self, detail: str) -> None:
        raise PluginContractError(self._plugin, "a pass stays within the slots that its requests have", detail)


def _spread(
    rows: np.ndarray, starts: Sequence[int], counts: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The new tokens of n requests, T in all: int32 [n + 1] where each begins, and for each token, int64 [T], the
    request's row and its slot."""
    first = np.array(starts, np.int64)  # [n]
    if max(counts) == 1:
        return np.arange(len(counts) + 1, dtype=np.int32), rows, first
    num_new = np.array(counts, np.int64)  # [n]
    cu = np.zeros(len(rows) + 1, np.int32)
    num_new.cumsum(out=cu[1:])
    slots = np.arange(cu[-1], dtype=np.int64) - np.repeat(cu[:-1] - first, num_new)
    return cu, np.repeat(rows, num_new), slots


def _tree_mask(parents: Sequence[Sequence[int]]) -> np.ndarray:
    """bool [T, most tokens of a request]: each new token sees its ancestors among them, and itself."""
    mask = np.zeros((sum(map(len, parents)), max(map(len, parents))), np.bool_)
    row = 0
    for own in parents:
        first = row
        for node, parent in enumerate(own):
            if parent >= 0:
                mask[row] = mask[first + parent]
            mask[row, node] = True
            row += 1
    return mask
