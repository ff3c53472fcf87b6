"""Drives an attention backend as the core does: paged sequences in a pool that starts full of NaN, and what is true.

Import it as `from tests.plugins.attention.paged_pool import Pool`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch

from tokenloom.interfaces.attention import AttentionBackend, AttentionBatch, AttentionContext, AttentionLayer
from tokenloom_attention.reference import reference_attend, reference_visible
from tokenloom_attention.torch_sdpa import TorchSdpaConfig

__all__ = ["TOLERANCES", "Paged", "Pool", "Shape", "Work", "layer_of"]

TOLERANCES = {
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    torch.float16: {"atol": 2e-3, "rtol": 2e-3},
    torch.bfloat16: {"atol": 1.6e-2, "rtol": 1.6e-2},
}
"""Against the fp32 reference on the same rounded inputs, where outputs are of size one: some roundings of the dtype."""


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """What a pool is built for."""

    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 4
    dtype: torch.dtype = torch.float32
    deterministic: bool = False

    def context(self) -> AttentionContext:
        return AttentionContext(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=self.block_size,
            dtype=self.dtype,
            device=torch.device("cpu"),
            max_num_seqs=64,
            max_num_batched_tokens=4096,
            max_model_len=4096,
            deterministic=self.deterministic,
        )


def layer_of(shape: Shape, window: int | None = None, soft_cap: float | None = None) -> AttentionLayer:
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

    def positions(self) -> list[int]:
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


@final
class Pool:
    """A backend with one layer's cache, all of it NaN at first, the null block included."""

    def __init__(
        self, shape: Shape, seed: int = 0, num_blocks: int = 1500, backend: AttentionBackend | None = None
    ) -> None:
        self.shape = shape
        self.backend = backend or TorchSdpaConfig(tile_kib=64).build(shape.context())
        spec = self.backend.kv_cache_spec(num_blocks)
        self.kv = [torch.full(size, torch.nan, dtype=dtype) for size, dtype in zip(spec.shapes, spec.dtypes)]
        self._generator = torch.Generator().manual_seed(seed)
        self._free = list(range(1, num_blocks))
        random.Random(seed).shuffle(self._free)

    def paged(self, length: int, num_computed: int = 0) -> Paged:
        """A request of at most `length` tokens, `num_computed` of them already cached."""
        shape = self.shape

        def rows(num_heads: int) -> torch.Tensor:
            return torch.randn(length, num_heads, shape.head_dim, generator=self._generator).to(shape.dtype)

        paged = Paged(rows(shape.num_heads), rows(shape.num_kv_heads), rows(shape.num_kv_heads))
        if num_computed:
            self.write([Work(paged, num_computed)])
            paged.num_computed = num_computed
        return paged

    def twin(self, paged: Paged, num_computed: int = 0) -> Paged:
        """A request with the same tokens in other blocks."""
        twin = Paged(paged.query, paged.key, paged.value)
        if num_computed:
            self.write([Work(twin, num_computed)])
            twin.num_computed = num_computed
        return twin

    def free_left_of_window(self, paged: Paged, window: int) -> None:
        """Takes away the blocks that no new token can see, as the core does, and poisons them."""
        first_visible = max(0, paged.num_computed - window + 1)
        for index in range(first_visible // self.shape.block_size):
            for cache in self.kv:
                cache[paged.blocks[index]] = torch.nan
            paged.blocks[index] = 0

    def batch(self, works: Sequence[Work], num_padding: int = 0, padding_len: int = 0) -> AttentionBatch:
        """The step's batch; `num_padding` requests of one row and `padding_len` tokens follow the real ones."""
        for work in works:
            needed = -(-(work.paged.num_computed + work.num_new) // self.shape.block_size)
            while len(work.paged.blocks) < needed:
                work.paged.blocks.append(self._free.pop())
        query_lens = [work.num_new for work in works] + [1] * num_padding
        seq_lens = [work.paged.num_computed + work.num_new for work in works] + [0] * num_padding
        table = torch.zeros(
            len(query_lens), 2 + max((len(w.paged.blocks) for w in works), default=0), dtype=torch.int32
        )
        for row, work in enumerate(works):
            table[row, : len(work.paged.blocks)] = torch.tensor(work.paged.blocks, dtype=torch.int32)
        positions = [position for work in works for position in work.positions()] + [0] * num_padding
        slots = [slot for work in works for slot in self.slots(work)] + [-1] * num_padding
        tree_mask: torch.Tensor | None = None
        if any(work.parents is not None for work in works):
            tree_mask = torch.zeros(sum(query_lens), max(query_lens), dtype=torch.bool)
            row = 0
            for work in works:
                tree_mask[row : row + work.num_new, : work.num_new] = work.mask()
                row += work.num_new
        return AttentionBatch(
            cu_seqlens_q=torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            positions=torch.tensor(positions, dtype=torch.int64),
            block_table=table,
            slot_mapping=torch.tensor(slots, dtype=torch.int64),
            tree_mask=tree_mask,
            query_lens_cpu=query_lens,
            seq_lens_cpu=seq_lens,
        )

    def slots(self, work: Work) -> list[int]:
        """Where the new tokens are stored."""
        size = self.shape.block_size
        new = range(work.paged.num_computed, work.paged.num_computed + work.num_new)
        return [work.paged.blocks[slot // size] * size + slot % size for slot in new]

    def write(self, works: Sequence[Work]) -> None:
        """Stores new tokens without attending."""
        metadata = self.backend.prepare(self.batch(works))
        self.backend.write_kv(self.kv, new_rows(works, "key"), new_rows(works, "value"), metadata)

    def step(
        self, works: Sequence[Work], layer: AttentionLayer, num_padding: int = 0, padding_len: int = 0
    ) -> torch.Tensor:
        """Stores and attends; returns the real rows [T, Hq, D]. Advances no request."""
        metadata = self.backend.prepare(self.batch(works, num_padding, padding_len))

        def padded(name: str) -> torch.Tensor:
            rows = new_rows(works, name)
            return torch.cat([rows, torch.full((num_padding, *rows.shape[1:]), torch.nan, dtype=rows.dtype)])

        self.backend.write_kv(self.kv, padded("key"), padded("value"), metadata)
        out = self.backend.forward(padded("query"), self.kv, layer, metadata)
        return out[: out.shape[0] - num_padding]

    def check(self, works: Sequence[Work], layer: AttentionLayer, num_padding: int = 0, padding_len: int = 0) -> None:
        """Runs a step and compares it with the dense reference on the true tokens."""
        out = self.step(works, layer, num_padding, padding_len)
        assert out.dtype == self.shape.dtype
        torch.testing.assert_close(out.float(), expected(works, layer), **TOLERANCES[self.shape.dtype])


def new_rows(works: Sequence[Work], name: str) -> torch.Tensor:
    """[T, heads, D]: the new tokens' true queries, keys or values."""
    parts: list[torch.Tensor] = []
    for work in works:
        paged = work.paged
        of_all = {"query": paged.query, "key": paged.key, "value": paged.value}[name]
        parts.append(of_all[paged.num_computed : paged.num_computed + work.num_new])
    return torch.cat(parts)


def expected(works: Sequence[Work], layer: AttentionLayer) -> torch.Tensor:
    """fp32 [T, Hq, D] of the reference, one request after the other."""
    parts: list[torch.Tensor] = []
    for work in works:
        paged, seq_len = work.paged, work.paged.num_computed + work.num_new
        visible = reference_visible(paged.num_computed, torch.tensor(work.positions()), layer.window, work.mask())
        query = paged.query[paged.num_computed : seq_len]
        key, value = paged.key[:seq_len], paged.value[:seq_len]
        parts.append(reference_attend(query, key, value, visible, layer.softmax_scale, layer.soft_cap))
    return torch.cat(parts)
