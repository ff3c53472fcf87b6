"""Cuts a step into spans (query rows of one request and the stretch of its sequence they can see) and packs them.

Host integers only: nothing here touches a tensor or waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

__all__ = ["RequestWork", "Span", "cut_aligned", "cut_rows", "pack"]


@final
@dataclass(frozen=True, slots=True)
class RequestWork:
    """One request's part of a step.

        sequence:  0 ......... num_computed ......... seq_len
                   |  cached   |  num_rows new tokens |
                               ^ token row first_row of the step

    Attributes:
        request: row of the block table.
        first_row: row of its first new token in the step.
        num_computed: tokens cached before this step.
        num_rows: new tokens.
        window: as in `AttentionLayer`.
        is_tree: whether positions of the new tokens may differ from their slots.
    """

    request: int
    first_row: int
    num_computed: int
    num_rows: int
    window: int | None
    is_tree: bool

    @property
    def seq_len(self) -> int:
        """Tokens of the sequence, the new ones included."""
        return self.num_computed + self.num_rows

    def first_visible(self, slot: int) -> int:
        """The lowest slot that any row from `slot` on can see.

        A tree node's position is at least num_computed, wherever its slot lies.
        """
        if self.window is None:
            return 0
        position = min(slot, self.num_computed) if self.is_tree else slot
        return max(0, position - self.window + 1)


@final
@dataclass(frozen=True, slots=True)
class Span:
    """`num_rows` query rows against `kv_end - kv_begin` slots of the same sequence.

    Row r is token row `first_row + r` and slot `first_slot + r`. The shape may reach beyond what exists: rows outside
    row_begin:row_end are padding, and slots outside kv_low:kv_high must not be read (they are masked anyway).
    """

    work: RequestWork
    first_row: int
    first_slot: int
    num_rows: int
    row_begin: int
    row_end: int
    kv_begin: int
    kv_end: int
    kv_low: int
    kv_high: int

    @property
    def num_slots(self) -> int:
        """Slots that the span covers."""
        return self.kv_end - self.kv_begin


def cut_rows(work: RequestWork, max_rows: int) -> Iterator[Span]:
    """Cuts a request's new tokens into spans of at most `max_rows`, each with only the slots that it can see."""
    for start in range(0, work.num_rows, max_rows):
        num_rows = min(max_rows, work.num_rows - start)
        row, slot = work.first_row + start, work.num_computed + start
        low = work.first_visible(slot)
        high = work.seq_len if work.is_tree else slot + num_rows
        yield Span(work, row, slot, num_rows, row, row + num_rows, low, high, low, high)


def cut_aligned(work: RequestWork, num_rows: int) -> Iterator[Span]:
    """Cuts a request's new tokens at multiples of `num_rows` slots, in shapes that depend on the slot alone.

    A token then meets the same products in the same shapes whether it is decoded alone, in a chunk or in a prompt.
    """
    for slot in range(work.num_computed // num_rows * num_rows, work.seq_len, num_rows):
        row = work.first_row + slot - work.num_computed
        begin = work.first_visible(slot)
        end = slot + num_rows
        if work.is_tree:
            end = -(-work.seq_len // num_rows) * num_rows
        yield Span(
            work=work,
            first_row=row,
            first_slot=slot,
            num_rows=num_rows,
            row_begin=max(row, work.first_row),
            row_end=min(row + num_rows, work.first_row + work.num_rows),
            kv_begin=begin,
            kv_end=end,
            kv_low=max(begin, work.first_visible(work.num_computed)),
            kv_high=min(end, work.seq_len),
        )


def pack(spans: Sequence[Span], max_slots: int, max_cells: int) -> Iterator[list[Span]]:
    """Groups spans of equal `num_rows` for batched products, longest first; each group is padded to its longest.

    Args:
        spans: any order.
        max_slots: most padded slots of a group (a longer span stands alone).
        max_cells: most rows x padded slots of a group (ditto).
    """
    group: list[Span] = []
    waste = 0
    for span in sorted(spans, key=lambda span: (span.num_rows, span.num_slots), reverse=True):
        if group:
            longest = group[0].num_slots
            slots = longest * (len(group) + 1)
            waste += longest - span.num_slots
            fits = slots <= max_slots and slots * span.num_rows <= max_cells
            # The fixed cost of one more group is about that of gathering a quarter of a full one.
            if span.num_rows != group[0].num_rows or not fits or waste > max_slots // 4:
                yield group
                group, waste = [], 0
        group.append(span)
    if group:
        yield group
