"""Tiles: gather indices and masks of one step, computed once and used by every layer with the same window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from tokenloom.interfaces.attention import AttentionBatch
from tokenloom_attention.torch_sdpa.spans import RequestWork, Span, cut_aligned, cut_rows, pack

__all__ = ["GroupedTile", "SdpaTile", "Tile", "TileLimits", "plan_tiles"]

ALIGNED_ROWS = 16
"""Query rows of a tile in deterministic mode; any constant is right."""


@final
@dataclass(frozen=True, slots=True)
class TileLimits:
    """Sizes that shape the tiles.

    Attributes:
        block_size, num_heads, num_kv_heads: as in `AttentionContext`.
        grouped_rows: most new tokens of a request that goes through grouped products when SDPA can do it too.
        max_slots: most gathered slots of a grouped tile.
        max_cells: most scores of a tile (rows x heads x slots), or mask entries for SDPA.
        deterministic: one request a tile, in shapes that depend on the slot alone.
    """

    block_size: int
    num_heads: int
    num_kv_heads: int
    grouped_rows: int
    max_slots: int
    max_cells: int
    deterministic: bool


@final
@dataclass(frozen=True, slots=True)
class GroupedTile:
    """n spans of R rows and L slots each, for batched products with the query group folded into the rows.

    Attributes:
        shape: (n, R, L).
        rows: int64 [n * R], token rows to read queries from.
        slots: int64 [n * L], where the keys and values lie in the cache.
        bias: fp32 [n, 1, R, 1, L]; 0 where visible, -inf where not.
        blind: bool [n * R], rows that see nothing; None when there are none.
        real: int64, which of the n * R rows are no padding; None means all.
        targets: int64, token rows that the real rows are written to.
    """

    shape: tuple[int, int, int]
    rows: torch.Tensor
    slots: torch.Tensor
    bias: torch.Tensor
    blind: torch.Tensor | None
    real: torch.Tensor | None
    targets: torch.Tensor


@final
@dataclass(frozen=True, slots=True)
class SdpaTile:
    """R consecutive rows of one request against L slots, for `scaled_dot_product_attention`.

    Attributes:
        row_begin, row_end: token rows.
        num_slots: L.
        slots: int64 [L], as in `GroupedTile`.
        visible: bool [R, L]; None means causal, with R == L.
        blind: bool [R], as in `GroupedTile`.
    """

    row_begin: int
    row_end: int
    num_slots: int
    slots: torch.Tensor
    visible: torch.Tensor | None
    blind: torch.Tensor | None


Tile = GroupedTile | SdpaTile


def plan_tiles(batch: AttentionBatch, window: int | None, can_sdpa: bool, limits: TileLimits) -> tuple[Tile, ...]:
    """Cuts a step into tiles that together hold every query row exactly once; rows of empty sequences are left out.

    Args:
        batch: the step.
        window: of the layers that will use the tiles.
        can_sdpa: whether SDPA can compute these layers (it has no soft cap and no sinks).
        limits: sizes.
    """
    works = _works(batch, window, limits)
    if limits.deterministic:
        spans = [span for work in works for span in cut_aligned(work, ALIGNED_ROWS)]
        return tuple(_grouped_tile([span], batch, limits) for span in spans)
    tiles: list[Tile] = []
    grouped: list[Span] = []
    for work in works:
        if work.num_rows <= limits.grouped_rows:
            grouped += cut_rows(work, work.num_rows)
        elif not can_sdpa:
            grouped += cut_rows(work, _max_rows(work, limits.max_cells // limits.num_heads))
        elif work.num_computed == 0 and work.first_visible(work.seq_len - 1) == 0 and not work.is_tree:
            tiles += [_sdpa_tile(span, batch, limits, is_causal=True) for span in cut_rows(work, work.num_rows)]
        else:
            cut = cut_rows(work, _max_rows(work, limits.max_cells))
            tiles += [_sdpa_tile(span, batch, limits, is_causal=False) for span in cut]
    packed = pack(grouped, limits.max_slots, limits.max_cells // limits.num_heads)
    return (*(_grouped_tile(spans, batch, limits) for spans in packed), *tiles)


def _works(batch: AttentionBatch, window: int | None, limits: TileLimits) -> list[RequestWork]:
    works: list[RequestWork] = []
    row = 0
    for request, (num_rows, seq_len) in enumerate(zip(batch.query_lens_cpu, batch.seq_lens_cpu, strict=True)):
        if num_rows > 0 and seq_len > 0:
            assert seq_len >= num_rows, f"request {request}: {num_rows} new tokens in a sequence of {seq_len}"
            is_tree = batch.tree_mask is not None and num_rows > 1
            if is_tree and limits.deterministic:
                # A plain chunk must take the same shapes whether or not another request of the step brings a tree.
                positions = batch.positions[row : row + num_rows].tolist()
                is_tree = positions != list(range(seq_len - num_rows, seq_len))
            works.append(RequestWork(request, row, seq_len - num_rows, num_rows, window, is_tree))
        row += num_rows
    return works


def _max_rows(work: RequestWork, max_cells: int) -> int:
    """Query rows of a span so that rows x slots stays within `max_cells` and a narrow window is not mostly masked."""
    rows, num_slots = 512, work.seq_len
    if work.window is not None and not work.is_tree:
        rows = min(rows, max(64, work.window))
        num_slots = min(num_slots, work.window + rows)
    return max(1, min(rows, max_cells // num_slots))


def _grouped_tile(spans: Sequence[Span], batch: AttentionBatch, limits: TileLimits) -> GroupedTile:
    facts = _SpanFacts(spans, batch)
    visible = facts.visible()  # [n, R, L]
    bias = torch.zeros(visible.shape, dtype=torch.float32, device=visible.device).masked_fill_(~visible, float("-inf"))
    rows = facts.rows.flatten()
    real: torch.Tensor | None = None
    if any(span.row_end - span.row_begin < span.num_rows for span in spans):
        real = facts.is_real().flatten().nonzero().flatten()
    return GroupedTile(
        shape=facts.shape,
        rows=rows,
        slots=facts.slots(limits.block_size),
        bias=bias[:, None, :, None, :],
        blind=facts.blind(visible),
        real=real,
        targets=rows if real is None else rows[real],
    )


def _sdpa_tile(span: Span, batch: AttentionBatch, limits: TileLimits, is_causal: bool) -> SdpaTile:
    facts = _SpanFacts([span], batch)
    visible = None if is_causal else facts.visible()
    return SdpaTile(
        row_begin=span.row_begin,
        row_end=span.row_end,
        num_slots=span.num_slots,
        slots=facts.slots(limits.block_size),
        visible=None if visible is None else visible[0],
        blind=None if visible is None else facts.blind(visible),
    )


@final
class _SpanFacts:
    """The spans of one tile as tensors: n spans, R rows, L slots (the widest span's)."""

    def __init__(self, spans: Sequence[Span], batch: AttentionBatch) -> None:
        self._batch = batch
        self._window = spans[0].work.window
        self.shape = (len(spans), spans[0].num_rows, max(span.num_slots for span in spans))
        host = [
            (s.first_row, s.row_begin, s.row_end - 1, s.first_slot, s.kv_begin, s.kv_low, s.kv_high - 1) for s in spans
        ]
        works = [(span.work.request, span.work.first_row, span.work.num_rows, span.work.num_computed) for span in spans]
        device = batch.block_table.device
        first_row, row_low, row_high, first_slot, kv_begin, self._kv_low, self._kv_high = _columns(host, device)
        self._request, self._query_begin, self._query_len, self._num_computed = _columns(works, device)
        steps = torch.arange(max(self.shape), device=device)
        self._nominal_rows = first_row + steps[: self.shape[1]]  # [n, R]
        self.rows = self._nominal_rows.clamp(row_low, row_high)  # [n, R]
        self._row_slots = first_slot + steps[: self.shape[1]]  # [n, R]
        self._offsets = kv_begin + steps[: self.shape[2]]  # [n, L]

    def is_real(self) -> torch.Tensor:
        """bool [n, R]: rows that are no padding."""
        return self._nominal_rows == self.rows

    def slots(self, block_size: int) -> torch.Tensor:
        """int64 [n * L]: where in the cache the keys and values lie.

        Slots that do not exist or have left the window are replaced by the nearest one that can be read: its values
        are finite, so that a weight of 0 on them gives 0. Zeroing what was gathered would cost a pass per layer.
        """
        readable = self._offsets.clamp(self._kv_low, self._kv_high)  # [n, L]
        blocks = self._batch.block_table[self._request, readable // block_size].long()
        return (blocks * block_size + readable % block_size).flatten()

    def visible(self) -> torch.Tensor:
        """bool [n, R, L]: does the row see the slot."""
        if self._batch.tree_mask is not None:
            return self._visible_in_tree(self._batch.tree_mask)
        visible = self._offsets[:, None, :] <= self._row_slots[:, :, None]
        if self._window is not None:
            visible &= self._offsets[:, None, :] > self._row_slots[:, :, None] - self._window
        return visible

    def blind(self, visible: torch.Tensor) -> torch.Tensor | None:
        """bool [n * R]: rows that see nothing; None when there are none (only a tree mask can make one)."""
        if self._batch.tree_mask is None:
            return None
        blind = ~visible.any(dim=-1).flatten()
        return blind if bool(blind.any()) else None

    def _visible_in_tree(self, tree_mask: torch.Tensor) -> torch.Tensor:
        node = self._offsets - self._num_computed  # [n, L]; negative for the cached prefix
        is_node = (node >= 0) & (node < self._query_len)
        column = node.clamp(0, tree_mask.shape[1] - 1)[:, None, :].expand(self.shape)
        visible = torch.where(is_node[:, None, :], tree_mask[self.rows].gather(2, column), (node < 0)[:, None, :])
        if self._window is not None:
            node_row = self._query_begin + torch.minimum(node.clamp(min=0), self._query_len - 1)
            positions = torch.where(is_node, self._batch.positions[node_row], self._offsets)  # [n, L]
            row_positions = self._batch.positions[self.rows]  # [n, R]
            visible &= positions[:, None, :] > row_positions[:, :, None] - self._window
        return visible


def _columns(rows: Sequence[tuple[int, ...]], device: torch.device) -> tuple[torch.Tensor, ...]:
    """One int64 [n, 1] tensor per field of `rows`."""
    return torch.tensor(rows, dtype=torch.int64).to(device)[:, :, None].unbind(1)
