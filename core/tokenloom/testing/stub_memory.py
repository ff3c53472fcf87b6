"""What lies in every KV slot of the stub executor: which group wrote it, for which token prefix.

A step that would read a slot never written, overwritten, or written for other tokens fails, as NaN or stale memory
would in a real pool.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.batch import BlockTransfers, NewRow, RowPlan, StepPlan
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.testing.stub_model import StubModel

__all__ = ["StubMemory", "StubRow"]

_Entry = tuple[int, int]
"""What lies in a slot: (group, prefix id)."""


@dataclass(slots=True)
class StubRow:
    """What the executor knows of a request. `prefixes[i]` is the id of tokens[:i + 1]."""

    new: NewRow
    tokens: list[int]
    prefixes: list[int]
    tables: list[list[int]]
    num_computed: int
    frontiers: list[int]
    """Per group, entries written; groups with lookahead lag behind."""
    drafts: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()


@final
class StubMemory:
    """The slots of every pool. `rows` are the executor's own, by request id."""

    def __init__(
        self,
        model: StubModel,
        groups: Sequence[KVGroupSpec],
        num_blocks: Sequence[int],
        block_size: int,
        rows: Mapping[str, StubRow],
    ) -> None:
        self._model = model
        self._groups = tuple(groups)
        self._block_size = block_size
        self._rows = rows
        # Per pool and slot: the entry that lies there, or None.
        self._slots: list[list[_Entry | None]] = [[None] * (count * block_size) for count in num_blocks]
        self._leaving: set[tuple[int, int]] = set()
        self.host: dict[str, list[list[list[_Entry | None]]]] = {}
        """Per request in host memory, the slots of its blocks, per group."""

    def export(self, transfers: BlockTransfers, lost: Collection[str]) -> tuple[str, ...]:
        """Copies blocks to host memory before anything else happens; returns which requests' were lost."""
        self._leaving.clear()
        for request_id in transfers.dropped:
            assert request_id in self.host, f"{request_id} dropped, but not in host memory"
            del self.host[request_id]
        for move in transfers.exports:
            assert move.request_id in self._rows, f"{move.request_id} moves away, but never ran"
            tables, content = self._rows[move.request_id].tables, list[list[list[_Entry | None]]]()
            for group, table, ids in zip(self._groups, tables, move.block_ids, strict=True):
                assert set(ids) <= set(table) - {0}, f"{move.request_id} moves blocks {ids}, its table is {table}"
                slots = self._slots[group.pool_id]
                content.append([slots[b * self._block_size : (b + 1) * self._block_size] for b in ids])
                self._leaving.update((group.pool_id, block_id) for block_id in ids)
            assert move.request_id not in self.host, f"{move.request_id} is in host memory already"
            self.host[move.request_id] = content
        return tuple(move.request_id for move in transfers.exports if move.request_id in lost)

    def restore(self, transfers: BlockTransfers) -> None:
        """Copies blocks and fills others from host memory, when the tables are up to date."""
        copied = [
            (group.pool_id, target, self._slots[group.pool_id][source * self._block_size :][: self._block_size])
            for move in transfers.copies
            for group, source, target in zip(self._groups, move.sources, move.targets, strict=True)
        ]
        for pool, block_id, entries in copied:
            self._slots[pool][block_id * self._block_size : (block_id + 1) * self._block_size] = entries
        for move in transfers.imports:
            content = self.host.pop(move.request_id)
            for group, blocks, sources, ids in zip(self._groups, content, move.sources, move.block_ids, strict=True):
                for source, block_id in zip(sources, ids, strict=True):
                    start = block_id * self._block_size
                    self._slots[group.pool_id][start : start + self._block_size] = blocks[source]

    def step(self, plan: StepPlan) -> None:
        """Checks what a step reads, and writes what it computes."""
        for row in plan.rows:
            self._check_reads(row)
        self._check_shared_writes(plan)
        for row in plan.rows:
            self._write_new(row)
        for row in plan.rows:
            self._check_written(row)

    def move_accepted(self, plan: RowPlan, row: StubRow, num_own: int, path: Sequence[int]) -> None:
        """Tree copies: the accepted nodes' entries to the slots behind the own tokens."""
        first = plan.num_computed_tokens + num_own
        for index, group in enumerate(self._groups):
            slots = self._slots[group.pool_id]
            for depth, node in enumerate(path) if not group.lookahead else ():
                slots[self.slot(row, index, first + depth)] = slots[self.slot(row, index, first + node)]

    def catch_up(self, row: StubRow) -> None:
        """Moves each group's frontier; one with lookahead writes the entries whose next tokens are known by now."""
        for index, group in enumerate(self._groups):
            end = min(row.num_computed, len(row.tokens) - group.lookahead)
            for position in range(row.frontiers[index], end) if group.lookahead else ():
                entry = (index, row.prefixes[position + group.lookahead])
                self._slots[group.pool_id][self.slot(row, index, position)] = entry
            row.frontiers[index] = max(row.frontiers[index], end)

    def _check_reads(self, plan: RowPlan) -> None:
        """The cached tokens that the step attends to are this sequence's own, in every group."""
        row = self._rows[plan.request_id]
        for index, group in enumerate(self._groups):
            end = min(plan.num_computed_tokens, row.frontiers[index])
            first = 0 if group.window is None else max(0, plan.num_computed_tokens - group.window + 1)
            slots = self._slots[group.pool_id]
            for position in range(first, end):
                found = slots[self.slot(row, index, position)]
                expected = (index, row.prefixes[position + group.lookahead])
                assert found == expected, (
                    f"step {plan.request_id}, group {index}: position {position} reads "
                    f"{'memory never written' if found is None else 'the KV of other tokens'}"
                )

    def _check_shared_writes(self, plan: StepPlan) -> None:
        """A block that is written belongs to one request and one group alone."""
        holders: dict[tuple[int, int], int] = {}
        for row in self._rows.values():
            for group, table in zip(self._groups, row.tables, strict=True):
                for block_id in filter(None, table):
                    holders[group.pool_id, block_id] = holders.get((group.pool_id, block_id), 0) + 1
        for row_plan in plan.rows:
            first = row_plan.num_computed_tokens // self._block_size
            last = (row_plan.num_computed_tokens + row_plan.num_scheduled_tokens - 1) // self._block_size
            for group, table in zip(self._groups, self._rows[row_plan.request_id].tables, strict=True):
                for block_id in table[first : last + 1]:
                    leaves = (group.pool_id, block_id) in self._leaving
                    assert not leaves, f"{row_plan.request_id} writes block {block_id}, which is on its way to the host"
                    assert holders[group.pool_id, block_id] == 1, (
                        f"{row_plan.request_id} writes shared block {block_id}"
                    )

    def _write_new(self, plan: RowPlan) -> None:
        row = self._rows[plan.request_id]
        for index, group in enumerate(self._groups):
            for offset, prefix in enumerate(self._new_prefixes(plan)) if not group.lookahead else ():
                self._slots[group.pool_id][self.slot(row, index, plan.num_computed_tokens + offset)] = (index, prefix)

    def _check_written(self, plan: RowPlan) -> None:
        row = self._rows[plan.request_id]
        for index, group in enumerate(self._groups):
            for offset, prefix in enumerate(self._new_prefixes(plan)) if not group.lookahead else ():
                slot = self.slot(row, index, plan.num_computed_tokens + offset)
                assert self._slots[group.pool_id][slot] == (index, prefix), f"two rows of the step write slot {slot}"

    def _new_prefixes(self, plan: RowPlan) -> list[int]:
        """Prefix id of each new token; a tree node's prefix is its path."""
        row = self._rows[plan.request_id]
        num_own = plan.num_scheduled_tokens - len(plan.draft_token_ids)
        own = row.prefixes[plan.num_computed_tokens : plan.num_computed_tokens + num_own]
        nodes: list[int] = []
        for index, token_id in enumerate(plan.draft_token_ids):
            parent = plan.draft_parents[index] if plan.draft_parents else index - 1
            nodes.append(self._model.extend(own[-1] if parent < 0 else nodes[parent], token_id))
        return own + nodes

    def slot(self, row: StubRow, group: int, index: int) -> int:
        """The KV slot of a sequence's slot `index`, in the group's pool."""
        block_id = row.tables[group][index // self._block_size]
        assert block_id, f"slot {index} of group {group} lies in the null block"
        return block_id * self._block_size + index % self._block_size
