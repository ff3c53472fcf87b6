"""Drives an attention backend as the core does: paged sequences in a pool that starts full of NaN, and what is true."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import torch

from tokenloom.interfaces.attention import AttentionBackend, AttentionBatch, AttentionContext, AttentionLayer
from tokenloom.testing.attention_reference import reference_attend, reference_visible
from tokenloom.testing.numeric_device import TOLERANCES, check_close

__all__ = ["Paged", "Pool", "Shape", "Work", "layer_of", "new_rows", "random_parents"]

CPU = torch.device("cpu")


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """What a pool and its backend are built for."""

    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 4
    dtype: torch.dtype = torch.float32
    deterministic: bool = False
    device: torch.device = CPU

    def context(self) -> AttentionContext:
        """What the backend is built from."""
        return AttentionContext(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=self.block_size,
            dtype=self.dtype,
            device=self.device,
            max_num_seqs=64,
            max_num_batched_tokens=4096,
            max_model_len=4096,
            deterministic=self.deterministic,
        )


def layer_of(shape: Shape, window: int | None = None, soft_cap: float | None = None) -> AttentionLayer:
    """A layer with the usual scale."""
    return AttentionLayer(0, 0, shape.head_dim**-0.5, window=window, soft_cap=soft_cap)


@final
@dataclass(slots=True)
class Paged:
    """One request: the true query, key and value of each slot, and where the pool keeps them."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)


@final
@dataclass(frozen=True, slots=True)
class Work:
    """New tokens of one request in a step. `parents[i]` is the node that node i hangs on, -1 for the first token's
    predecessor; None makes a chain."""

    paged: Paged
    num_new: int
    parents: tuple[int, ...] | None = None

    @property
    def seq_len(self) -> int:
        """Tokens of the sequence, the new ones included."""
        return self.paged.num_computed + self.num_new

    def positions(self) -> list[int]:
        """The position of each new token: siblings share one."""
        depths: list[int] = []
        for node in range(self.num_new):
            parent = node - 1 if self.parents is None else self.parents[node]
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return [self.paged.num_computed + depth for depth in depths]

    def mask(self) -> torch.Tensor:
        """bool [num_new, num_new]: a node sees itself and its ancestors."""
        mask = torch.eye(self.num_new, dtype=torch.bool)
        for node in range(self.num_new):
            parent = node - 1 if self.parents is None else self.parents[node]
            if parent >= 0:
                mask[node] |= mask[parent]
        return mask


def random_parents(num_nodes: int, seed: int) -> tuple[int, ...]:
    """A random tree: node 0 is the last real token, every other node hangs on one before it."""
    shuffle = random.Random(seed)
    return (-1, *(shuffle.randrange(node) for node in range(1, num_nodes)))


def _same(tokens: torch.Tensor) -> torch.Tensor:
    return tokens


@final
class Pool:
    """A backend with one layer's cache, every byte of it 0xFF at first (NaN in all float dtypes), null block included.

    Args:
        backend: built from `shape.context()`.
        shape: sizes.
        num_blocks: the null block included; block ids are handed out in random order.
        seed: of block ids and tokens.
        as_stored: what the cache gives back for keys or values [n, Hkv, D] written to it.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        shape: Shape,
        num_blocks: int,
        seed: int = 0,
        as_stored: Callable[[torch.Tensor], torch.Tensor] = _same,
    ) -> None:
        self.backend = backend
        self.shape = shape
        self.num_blocks = num_blocks
        self._as_stored = as_stored
        spec = backend.kv_cache_spec(num_blocks)
        self.kv = [
            torch.full((*size, dtype.itemsize), 0xFF, dtype=torch.uint8, device=shape.device).view(dtype).squeeze(-1)
            for size, dtype in zip(spec.shapes, spec.dtypes, strict=True)
        ]
        self._generator = torch.Generator().manual_seed(seed)
        self._free = list(range(1, num_blocks))
        random.Random(seed).shuffle(self._free)

    def paged(self, length: int, num_computed: int = 0) -> Paged:
        """A request of at most `length` tokens, `num_computed` of them already cached."""
        shape = self.shape

        def rows(num_heads: int) -> torch.Tensor:
            tokens = torch.randn(length, num_heads, shape.head_dim, generator=self._generator)
            return tokens.to(device=shape.device, dtype=shape.dtype)

        paged = Paged(rows(shape.num_heads), rows(shape.num_kv_heads), rows(shape.num_kv_heads))
        return self._computed(paged, num_computed)

    def twin(self, paged: Paged, num_computed: int = 0) -> Paged:
        """A request with the same tokens in other blocks."""
        return self._computed(Paged(paged.query, paged.key, paged.value), num_computed)

    def _computed(self, paged: Paged, num_computed: int) -> Paged:
        if num_computed:
            self.write([Work(paged, num_computed)])
            paged.num_computed = num_computed
        return paged

    def poison(self, block_ids: Sequence[int]) -> None:
        """Makes blocks as they were before anything was written."""
        ids = self.index(block_ids)
        content = self.backend.export_blocks(self.kv, ids)
        dirt = [torch.full_like(part.contiguous().view(torch.uint8), 0xFF).view(part.dtype) for part in content]
        self.backend.import_blocks(self.kv, ids, dirt)

    def free_left_of_window(self, paged: Paged, window: int) -> None:
        """Takes away the blocks that no new token can see, as the core does, and poisons them."""
        first_visible = max(0, paged.num_computed - window + 1)
        gone = range(first_visible // self.shape.block_size)
        self.poison([paged.blocks[index] for index in gone if paged.blocks[index] != 0])
        for index in gone:
            paged.blocks[index] = 0

    def index(self, values: Sequence[int]) -> torch.Tensor:
        """int64 on the device."""
        return torch.tensor(list(values), dtype=torch.int64, device=self.shape.device)

    def blocks_of(self, paged: Paged, length: int) -> None:
        """Gives a request the blocks for its first `length` tokens."""
        while len(paged.blocks) * self.shape.block_size < length:
            paged.blocks.append(self._free.pop())

    def batch(self, works: Sequence[Work], num_padding: int = 0, window: int | None = None) -> AttentionBatch:
        """The step's batch; `num_padding` requests of one row follow the real ones."""
        for work in works:
            self.blocks_of(work.paged, work.seq_len)
        query_lens = [work.num_new for work in works] + [1] * num_padding
        seq_lens = [work.seq_len for work in works] + [0] * num_padding
        width = 2 + max((len(work.paged.blocks) for work in works), default=0)
        table = torch.zeros(len(query_lens), width, dtype=torch.int32)
        for row, work in enumerate(works):
            table[row, : len(work.paged.blocks)] = torch.tensor(work.paged.blocks, dtype=torch.int32)
        positions = [position for work in works for position in work.positions()] + [0] * num_padding
        slots = [slot for work in works for slot in self.slots(work)] + [-1] * num_padding
        tree_mask = _tree_mask(works, query_lens)
        device = self.shape.device
        return AttentionBatch(
            cu_seqlens_q=torch.tensor([0, *query_lens]).cumsum(0).to(device=device, dtype=torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
            positions=self.index(positions),
            block_table=table.to(device),
            slot_mapping=self.index(slots),
            tree_mask=None if tree_mask is None else tree_mask.to(device),
            query_lens_cpu=query_lens,
            seq_lens_cpu=seq_lens,
            window=window,
        )

    def slots(self, work: Work) -> list[int]:
        """Where the new tokens are stored."""
        size = self.shape.block_size
        new = range(work.paged.num_computed, work.seq_len)
        return [work.paged.blocks[slot // size] * size + slot % size for slot in new]

    def write(self, works: Sequence[Work]) -> None:
        """Stores new tokens without attending."""
        metadata = self.backend.prepare(self.batch(works))
        self.backend.write_kv(self.kv, new_rows(works, "key"), new_rows(works, "value"), metadata)

    def step(self, works: Sequence[Work], layer: AttentionLayer, num_padding: int = 0) -> torch.Tensor:
        """Stores and attends; returns the result [T, Hq, D], padding rows included. Advances no request."""
        metadata = self.backend.prepare(self.batch(works, num_padding, layer.window))

        def padded(name: str) -> torch.Tensor:
            rows = new_rows(works, name)
            return torch.cat([rows, rows.new_full((num_padding, *rows.shape[1:]), torch.nan)])

        self.backend.write_kv(self.kv, padded("key"), padded("value"), metadata)
        return self.backend.forward(padded("query"), self.kv, layer, metadata)

    def check(self, works: Sequence[Work], layer: AttentionLayer, num_padding: int = 0, case: str = "") -> None:
        """Runs a step and compares it with the dense reference on the true tokens; padding rows must be zero."""
        out = self.step(works, layer, num_padding)
        where = f"{case or 'forward'} ({_names(self.shape, layer)})"
        assert out.dtype == self.shape.dtype, f"{where}: dtype {out.dtype}, expected that of the query"
        real = out[: out.shape[0] - num_padding]
        check_close(real, self.expected(works, layer), TOLERANCES[self.shape.dtype], where)
        padding = out[real.shape[0] :]
        assert bool((padding == 0).all()), f"{where}: padding rows must be zero, got {padding.flatten()[:4].tolist()}"

    def expected(self, works: Sequence[Work], layer: AttentionLayer) -> torch.Tensor:
        """fp32 [T, Hq, D] of the reference, one request after the other."""
        parts: list[torch.Tensor] = []
        for work in works:
            paged = work.paged
            positions, mask = self.index(work.positions()), work.mask().to(self.shape.device)
            visible = reference_visible(paged.num_computed, positions, layer.window, mask)
            query = paged.query[paged.num_computed : work.seq_len]
            key, value = (self._as_stored(of_all[: work.seq_len]) for of_all in (paged.key, paged.value))
            form = (layer.softmax_scale, layer.soft_cap, layer.sinks)
            parts.append(reference_attend(query, key, value, visible, *form))
        return torch.cat(parts)

    def exported(self) -> list[torch.Tensor]:
        """The bytes of every slot in canonical layout: per stored quantity uint8 [num_blocks * BS, bytes]."""
        content = self.backend.export_blocks(self.kv, self.index(range(self.num_blocks)))
        num_slots = self.num_blocks * self.shape.block_size
        return [part.contiguous().view(torch.uint8).reshape(num_slots, -1).clone() for part in content]


def new_rows(works: Sequence[Work], name: str) -> torch.Tensor:
    """[T, heads, D]: the new tokens' true queries, keys or values."""
    parts: list[torch.Tensor] = []
    for work in works:
        paged = work.paged
        of_all = {"query": paged.query, "key": paged.key, "value": paged.value}[name]
        parts.append(of_all[paged.num_computed : work.seq_len])
    return torch.cat(parts)


def _tree_mask(works: Sequence[Work], query_lens: Sequence[int]) -> torch.Tensor | None:
    """bool [T, max query length], or None when no request has a tree."""
    if all(work.parents is None for work in works):
        return None
    tree_mask = torch.zeros(sum(query_lens), max(query_lens), dtype=torch.bool)
    row = 0
    for work in works:
        tree_mask[row : row + work.num_new, : work.num_new] = work.mask()
        row += work.num_new
    return tree_mask


def _names(shape: Shape, layer: AttentionLayer) -> str:
    return (
        f"heads {shape.num_heads}/{shape.num_kv_heads}, head_dim {shape.head_dim}, block_size {shape.block_size}, "
        f"{str(shape.dtype).removeprefix('torch.')}, window {layer.window}, soft_cap {layer.soft_cap}, "
        f"scale {layer.softmax_scale:.4g}"
    )
