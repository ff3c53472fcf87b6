"""What the executor remembers of each request between steps: tokens, block tables and sampling settings, by row.

Arrays are allocated once; a step changes only what its plan says. Rows are slots, not positions in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import final

import numpy as np
import numpy.typing as npt
import torch

from tokenloom.batch import BlockTableUpdate, NewRow, RowPlan, draft_paths
from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.interfaces.logits_processor import LogitsRow
from tokenloom.sampling.batch import SamplingBatch, SamplingRow
from tokenloom.sampling.history import RowHistory, TokenHistory
from tokenloom.sampling.processors import ProcessorTable, RowProcessors, StepProcessors, settings_of

__all__ = ["BatchState"]


@final
class BatchState:
    """Persistent state of up to `max_num_seqs` requests.

    Attributes:
        token_ids: int32 [rows, max_model_len + 1]; the request's tokens, then room for the drafts in flight.
        num_tokens: int64 [rows]; verified tokens.
        block_tables: per KV group int32 [rows, max_blocks]; 0 beyond `num_blocks`.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        num_groups: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        max_blocks = -(-max_model_len // block_size) + 1
        self.block_size = block_size
        self.token_ids: npt.NDArray[np.int32] = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self.num_tokens: npt.NDArray[np.int64] = np.zeros(max_num_seqs, np.int64)
        self.block_tables = [np.zeros((max_num_seqs, max_blocks), np.int32) for _ in range(num_groups)]
        self._num_blocks = [[0] * max_num_seqs for _ in range(num_groups)]
        self._vocab_size = vocab_size
        self._device = device
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._rows: dict[str, int] = {}
        self._new: dict[str, NewRow] = {}
        self._constraints: dict[str, LogitsConstraint] = {}
        self._sampling: SamplingBatch | None = None
        self._sampling_rows: dict[str, int] = {}
        self._settings: dict[str, SamplingRow] = {}
        # Only requests whose options depend on the tokens so far are in here.
        self._histories: dict[int, TokenHistory] = {}
        self._processed: set[str] = set()
        self._processors = ProcessorTable(vocab_size, device)

    def row(self, request_id: str) -> int:
        """The row of a known request."""
        return self._rows[request_id]

    def rows(self, plans: Sequence[RowPlan]) -> list[int]:
        """The rows of all requests of a plan."""
        return [self._rows[plan.request_id] for plan in plans]

    def tokens(self, request_id: str) -> npt.NDArray[np.int32]:
        """All tokens of a request so far, as a read-only view."""
        row = self._rows[request_id]
        view = self.token_ids[row, : self.num_tokens[row]]
        view.flags.writeable = False
        return view

    def constraint(self, request_id: str) -> LogitsConstraint | None:
        """This executor's own cursor of a request's constraint, behind its last verified token."""
        return self._constraints.get(request_id)

    def info(self, request_id: str) -> NewRow:
        """What was told about a request when it joined."""
        return self._new[request_id]

    def remove(self, request_ids: Sequence[str]) -> None:
        """Forgets requests that ended or were preempted; unknown ids never ran here and are ignored."""
        for request_id in request_ids:
            row = self._rows.pop(request_id, None)
            if row is None:
                continue
            for table, num_blocks in zip(self.block_tables, self._num_blocks, strict=True):
                table[row, : num_blocks[row]] = 0
                num_blocks[row] = 0
            del self._new[request_id]
            del self._settings[request_id]
            self._constraints.pop(request_id, None)
            self._histories.pop(row, None)
            self._processed.discard(request_id)
            self._free_rows.append(row)
            self._sampling = None

    def update(self, plans: Sequence[RowPlan]) -> None:
        """Applies what a step plans for its requests: new ones join, block tables change."""
        for plan in plans:
            if plan.new is not None:
                self._join(plan.request_id, plan.new)
            row = self._rows[plan.request_id]
            for group, update in enumerate(plan.block_updates):
                num_blocks, num_kept = self._num_blocks[group], update.num_kept_blocks
                # In most steps, most tables stay as they are.
                if update.new_block_ids or update.num_null_blocks or num_kept != num_blocks[row]:
                    self._change_table(group, row, update)

    def _change_table(self, group: int, row: int, update: BlockTableUpdate) -> None:
        table, num_blocks = self.block_tables[group], self._num_blocks[group]
        end = update.num_kept_blocks + len(update.new_block_ids)
        table[row, : update.num_null_blocks] = 0
        table[row, update.num_kept_blocks : end] = update.new_block_ids
        table[row, end : num_blocks[row]] = 0
        num_blocks[row] = end

    def append_tokens(self, row: int, token_ids: Sequence[int]) -> None:
        """Adds verified tokens, as far as the row has room (the core ends a request at its limit)."""
        start = int(self.num_tokens[row])
        kept = token_ids[: self.token_ids.shape[1] - start]
        self.token_ids[row, start : start + len(kept)] = kept
        self.num_tokens[row] = start + len(kept)
        history = self._histories.get(row)
        if history is not None:
            history.append(kept)

    def sampling(
        self,
        request_ids: Sequence[str],
        num_rows: Sequence[int],
        offsets: Sequence[int],
        plans: Mapping[str, RowPlan] = MappingProxyType({}),
    ) -> SamplingBatch:
        """The sampling settings of this step's logits rows.

        Args:
            request_ids: requests that sample, in batch order.
            num_rows: per request, its logits rows: 1 + drafts.
            offsets: per logits row, how far ahead of the next output position it lies.
            plans: by request id; says which drafts the rows lie behind.
        """
        batch = self._fixed_sampling(request_ids, num_rows, offsets)
        if not self._histories and not self._processed:
            return batch
        histories: list[RowHistory] = []
        processors: list[RowProcessors] = []
        first = 0
        for request_id, count in zip(request_ids, num_rows, strict=True):
            history = self._histories.get(self._rows[request_id])
            is_processed = request_id in self._processed
            if history is not None or is_processed:
                paths = draft_paths(plans[request_id]) if count > 1 else [()]
                assert len(paths) == count, f"{request_id}: {len(paths)} paths for {count} rows"
                if history is not None:
                    histories += [RowHistory(first + i, history, path) for i, path in enumerate(paths)]
                if is_processed:
                    processors += [self._row_processors(request_id, first + i, path) for i, path in enumerate(paths)]
            first += count
        return batch.with_tokens(histories, StepProcessors.build(self._processors, processors))

    def _fixed_sampling(
        self, request_ids: Sequence[str], num_rows: Sequence[int], offsets: Sequence[int]
    ) -> SamplingBatch:
        """What of a step's sampling settings does not depend on the tokens so far."""
        if self._sampling is None:
            self._sampling_rows = {request_id: index for index, request_id in enumerate(self._rows)}
            rows = [self._settings[request_id] for request_id in self._rows]
            self._sampling = SamplingBatch.build(rows, self._vocab_size, self._device)
        base = self._sampling
        positions = [self._output_position(request_id) for request_id in self._rows]
        base.position.copy_(torch.tensor(positions, dtype=torch.int64))
        chosen = [self._sampling_rows[request_id] for request_id in request_ids]
        if len(offsets) == base.num_rows and chosen == list(range(base.num_rows)):
            return base
        return base.select([row for row, count in zip(chosen, num_rows, strict=True) for _ in range(count)], offsets)

    def _join(self, request_id: str, new: NewRow) -> None:
        assert request_id not in self._rows, f"{request_id} joins twice"
        row = self._rows[request_id] = self._free_rows.pop()
        self._new[request_id] = new
        self.token_ids[row, : len(new.token_ids)] = new.token_ids
        self.num_tokens[row] = len(new.token_ids)
        self._sampling = None
        self._join_sampling(request_id, row, new)
        if new.constraint is not None:
            cursor = self._constraints[request_id] = new.constraint.fork()
            for token_id in new.token_ids[new.num_prompt_tokens :]:
                is_legal = cursor.advance(token_id)
                assert is_legal, f"{request_id}: output token {token_id} is not legal under its constraint"

    def _output_position(self, request_id: str) -> int:
        return int(self.num_tokens[self._rows[request_id]]) - self._new[request_id].num_prompt_tokens

    def _join_sampling(self, request_id: str, row: int, new: NewRow) -> None:
        """Prepares what is fixed as long as the request stays, and the history of its tokens if it needs one."""
        self._settings[request_id] = SamplingRow(
            new.params,
            new.seed,
            new.choice_index,
            len(new.token_ids) - new.num_prompt_tokens,
            new.forbidden_stop_ids,
            tuple(word[0] for word in new.bad_words if len(word) == 1),
        )
        long_words = [word for word in new.bad_words if len(word) > 1]
        if new.params.has_penalties or long_words:
            self._histories[row] = TokenHistory(new.params, new.token_ids, new.num_prompt_tokens, long_words)
        if new.processors:
            self._processed.add(request_id)

    def _row_processors(self, request_id: str, logits_row: int, path: Sequence[int]) -> RowProcessors:
        new, token_ids = self._new[request_id], self.tokens(request_id)
        if path:
            token_ids = np.concatenate([token_ids, np.array(path, np.int32)])
            token_ids.flags.writeable = False
        infos = (LogitsRow(token_ids, new.num_prompt_tokens, settings_of(choice)) for choice in new.processors)
        return RowProcessors(logits_row, tuple(zip(new.processors, infos, strict=True)))
