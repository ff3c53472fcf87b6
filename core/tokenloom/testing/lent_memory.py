"""KV memory for a drafter that is driven without an engine: every request has all its slots from the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.batch import BlockTableUpdate, NewRow, RowPlan
from tokenloom.batch_state import BatchState
from tokenloom.draft_passes import DraftPasses
from tokenloom.executors.drafting import head_shape
from tokenloom.executors.kv_memory import allocate_kv, draft_groups
from tokenloom.interfaces.attention import AttentionContext
from tokenloom.interfaces.draft_memory import DraftKVGroup, DraftMemory
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.interfaces.spec_decode import DrafterContext
from tokenloom.kv.memory_plan import MemoryPlan
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.reference_backend import ReferenceBackend

__all__ = ["LentMemory"]

_BLOCK_SIZE = 4
_TARGET = KVGroupSpec(group_id=0, layers=("layers.0",), window=None, page_bytes=1)


@final
class LentMemory:
    """Blocks of 4 tokens; unwritten memory holds NaN, also where a request's blocks belonged to another one.

    Attributes:
        memory: what `DraftBatch.memory` is.
    """

    def __init__(self, needed: Sequence[DraftKVGroup], context: DrafterContext) -> None:
        num_heads, num_kv_heads, head_dim = head_shape(needed, "drafter")
        attention = ReferenceBackend(
            AttentionContext(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                block_size=_BLOCK_SIZE,
                dtype=context.dtype,
                device=context.device,
                max_num_seqs=context.max_num_seqs,
                max_num_batched_tokens=context.max_num_seqs * context.max_model_len,
                max_model_len=context.max_model_len,
            )
        )
        own = draft_groups(needed, attention, (_TARGET,))
        self._per_request = -(-context.max_model_len // _BLOCK_SIZE)
        num_blocks = 1 + context.max_num_seqs * self._per_request
        plan = MemoryPlan((2,) + (num_blocks,) * max(group.pool_id for group in own), {})
        layers = [group.group_id for group in own for _ in group.layers]
        # Groups of a pool share its tensors, and here each would give the same ids away; so all have their own.
        self._kv = [
            tensors
            for layer in layers
            for tensors in allocate_kv([layer], (_TARGET, *own), plan, attention, context.device)
        ]
        sizes = (context.max_num_seqs, context.max_model_len, _BLOCK_SIZE, 1 + len(own), context.vocab_size)
        self._state = BatchState(*sizes, context.device)
        self._num_groups = 1 + len(own)
        self._places = list(range(context.max_num_seqs - 1, -1, -1))
        self._place_of: dict[str, int] = {}
        self.memory: DraftMemory = DraftPasses(self._state, own, attention, self._kv, "drafter")

    def join(self, request_ids: Sequence[str]) -> None:
        """Gives memory to requests that have none yet."""
        for request_id in request_ids:
            if request_id in self._place_of:
                continue
            place = self._place_of[request_id] = self._places.pop()
            first = 1 + place * self._per_request
            ids = tuple(range(first, first + self._per_request))
            for tensor in (tensor for tensors in self._kv for tensor in tensors):
                tensor[first : first + self._per_request] = float("nan")
            updates = (BlockTableUpdate(0, 0, ids),) * self._num_groups
            new = NewRow([], 0, SamplingParams(), 0, 0)
            self._state.update([RowPlan(request_id, 0, 1, (), updates, samples=True, new=new)])

    def leave(self, request_ids: Sequence[str]) -> None:
        """Takes it back; unknown ids are ignored."""
        self._state.remove(request_ids)
        for request_id in request_ids:
            place = self._place_of.pop(request_id, None)
            if place is not None:
                self._places.append(place)
