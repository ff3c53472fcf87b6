"""Conformance of attention: how the KV cache is sized, written, copied and moved, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch

from tokenloom.interfaces.attention import AttentionBatch
from tokenloom.testing.attention_cases import AttentionCases
from tokenloom.testing.numeric_device import DTYPES, TOLERANCES, check_close, require_dtype
from tokenloom.testing.paged_pool import Pool, Shape, Work, layer_of, new_rows

__all__ = ["AttentionMemorySuite"]


def _fill_with_random_bits(pool: Pool) -> None:
    """Every kind of bit pattern, NaN payloads included."""
    generator = torch.Generator().manual_seed(0)
    for part in pool.kv:
        dirt = torch.randint(0, 256, (part.numel() * part.itemsize,), dtype=torch.uint8, generator=generator)
        part.copy_(dirt.to(part.device).view(part.dtype).view(part.shape))


class AttentionMemorySuite(AttentionCases):
    """The half of `AttentionSuite` that is about memory."""

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_kv_cache_spec_states_its_bytes_exactly(self, dtype: str) -> None:
        """`page_bytes` is what one block takes over all tensors, whatever the number of blocks: the core sizes the KV
        memory from it, and an error of a byte a block is an error of megabytes."""
        for block_size in self.block_sizes():
            shape = self.shape(block_size=block_size, dtype=require_dtype(self.capabilities, dtype))
            backend = self.make_backend(shape)
            page_bytes = backend.kv_cache_spec(1).page_bytes
            for num_blocks in (1, 2, 7, 100):
                spec = backend.kv_cache_spec(num_blocks)
                assert len(spec.shapes) == len(spec.dtypes), f"{len(spec.shapes)} shapes, {len(spec.dtypes)} dtypes"
                stated = sum(math.prod(size) * kind.itemsize for size, kind in zip(spec.shapes, spec.dtypes))
                case = f"block_size {block_size}, {dtype}, {num_blocks} blocks"
                assert spec.page_bytes == page_bytes, f"{case}: page_bytes {spec.page_bytes}, for 1 block {page_bytes}"
                assert stated == num_blocks * page_bytes, f"{case}: tensors of {stated} bytes, page_bytes {page_bytes}"

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_write_kv_stores_each_token_at_its_slot_and_nothing_else(self, dtype: str) -> None:
        """After `write_kv` the blocks, exported, hold the new tokens at `slot_mapping` and all other slots are
        untouched. Blocks of other requests may be next to them."""
        pool = self.make_pool(self.shape(dtype=require_dtype(self.capabilities, dtype)), 60)
        works = [Work(pool.paged(11, 3), 6), Work(pool.paged(5), 5)]
        before = pool.exported()
        pool.write(works)
        slots = pool.index([slot for work in works for slot in pool.slots(work)])
        self._check_stored(pool, before, slots, new_rows(works, "key"), new_rows(works, "value"))

    def test_write_kv_takes_strided_keys_and_values(self) -> None:
        """Keys and values are often slices of one fused projection: only the last dimension is sure to be
        contiguous."""
        pool = self.make_pool(self.shape(), 60)
        works = [Work(pool.paged(9), 9)]
        metadata = pool.backend.prepare(pool.batch(works))
        key, value = new_rows(works, "key"), new_rows(works, "value")
        before, num_heads = pool.exported(), key.shape[1]
        fused = torch.cat([key, value], dim=1)  # [T, 2 * Hkv, D]
        pool.backend.write_kv(pool.kv, fused[:, :num_heads], fused[:, num_heads:], metadata)
        self._check_stored(pool, before, pool.index(pool.slots(works[0])), key, value)

    def test_write_kv_does_not_store_negative_slots(self) -> None:
        """A negative slot means "do not store", whichever it is: padding rows have one. As an index it would hit the
        last blocks of the pool."""
        pool = self.make_pool(self.shape(), 60)
        works = [Work(pool.paged(6), 6)]
        batch = pool.batch(works)
        batch.slot_mapping[1], batch.slot_mapping[4] = -1, -7
        before = pool.exported()
        key, value = new_rows(works, "key"), new_rows(works, "value")
        pool.backend.write_kv(pool.kv, key, value, pool.backend.prepare(batch))
        rows = pool.index([0, 2, 3, 5])
        self._check_stored(pool, before, batch.slot_mapping[rows], key[rows], value[rows])

    def _check_stored(
        self, pool: Pool, before: list[torch.Tensor], slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        is_new = torch.zeros(before[0].shape[0], dtype=torch.bool, device=slots.device)
        is_new[slots] = True
        after = pool.exported()
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            wrong = (~is_new & (old != new).any(dim=1)).nonzero().flatten().tolist()
            assert not wrong, f"quantity {index}: slots {wrong[:8]} changed, none of which was to be written"
        content = pool.backend.export_blocks(pool.kv, pool.index([0]))
        if len(content) != 2 or content[0].dtype != pool.shape.dtype:
            return  # a quantized cache: what it stores is read through `forward` only
        for name, stored, true in (("keys", after[0], key), ("values", after[1], value)):
            wanted = true.contiguous().view(torch.uint8).reshape(true.shape[0], -1)
            wrong = (stored[slots] != wanted).any(dim=1).nonzero().flatten().tolist()
            assert not wrong, f"{name} of token rows {wrong[:8]} are not at slots {slots[wrong[:8]].tolist()}"

    @pytest.mark.parametrize(
        ("source", "target"),
        [
            (range(5, 44), range(4, 43)),
            (range(4, 43), range(5, 44)),
            ((9, 5, 27), (5, 9, 50)),
            ((6, 6, 6), (7, 8, 9)),
            ((), ()),
        ],
        ids=["down", "up", "swap", "spread", "nothing"],
    )
    def test_copy_slots_reads_all_before_it_writes(self, source: tuple[int, ...], target: tuple[int, ...]) -> None:
        """Overlapping copies behave as if all of `source` had been read first; stored bits are copied as they are,
        scales included. Anything else spoils the accepted path of a tree. See `copy_slots`."""
        pool = self.make_pool(self.shape(), 40)
        _fill_with_random_bits(pool)
        before = pool.exported()
        pool.backend.copy_slots(pool.kv, pool.index(source), pool.index(target))
        for index, (old, new) in enumerate(zip(before, pool.exported(), strict=True)):
            wanted = old.clone()
            for start, stop in zip(source, target):
                wanted[stop] = old[start]
            wrong = (wanted != new).any(dim=1).nonzero().flatten().tolist()
            assert not wrong, f"quantity {index}: slots {wrong[:8]} do not hold what was copied to them, or left alone"

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_export_blocks_gives_the_canonical_layout(self, dtype: str) -> None:
        """One contiguous tensor [n, BS, Hkv, ...] per stored quantity, in the order of the ids asked for. It is a copy:
        later writes do not change it. See `export_blocks`."""
        for block_size in self.block_sizes():
            kind = require_dtype(self.capabilities, dtype)
            shape = self.shape(block_size=block_size, num_heads=6, num_kv_heads=3, dtype=kind)
            pool = self.make_pool(shape, 60)
            paged = pool.paged(2 * block_size + 1, num_computed=2 * block_size + 1)
            content = pool.backend.export_blocks(pool.kv, pool.index(paged.blocks[1::-1]))
            for part in content:
                assert part.shape[:3] == (2, block_size, 3), f"{tuple(part.shape)} is not [2, {block_size}, 3, ...]"
                assert part.is_contiguous(), f"strides {part.stride()} of a part of shape {tuple(part.shape)}"
            if len(content) == 2 and content[0].dtype == shape.dtype:
                for part, tokens in zip(content, (paged.key, paged.value)):
                    wanted = torch.stack([tokens[block_size : 2 * block_size], tokens[:block_size]])
                    assert torch.equal(part, wanted), "the blocks of a sequence do not hold its tokens in order"
            copies = [part.clone().view(torch.uint8) for part in content]
            pool.poison(paged.blocks)
            for part, copy in zip(content, copies):
                assert torch.equal(part.view(torch.uint8), copy), "an export is a view of the cache, not a copy"

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_import_restores_exported_blocks_bit_for_bit(self, dtype: str) -> None:
        """Swapping blocks out and in, to the same ids or to others, keeps every bit and touches no other block."""
        shape = self.shape(num_heads=6, num_kv_heads=3, dtype=require_dtype(self.capabilities, dtype))
        pool = self.make_pool(shape, 12)
        _fill_with_random_bits(pool)
        size = shape.block_size
        for sources, targets in (((7, 2, 11), (7, 2, 11)), ((7, 2, 11), (3, 7, 1)), ((), ())):
            before = pool.exported()
            content = pool.backend.export_blocks(pool.kv, pool.index(sources))
            if sources:
                pool.poison(sources)
            pool.backend.import_blocks(pool.kv, pool.index(targets), content)
            for index, (old, new) in enumerate(zip(before, pool.exported(), strict=True)):
                wanted = old.clone().view(pool.num_blocks, size, -1)
                wanted[list(sources)] = 0xFF
                wanted[list(targets)] = old.view(pool.num_blocks, size, -1)[list(sources)]
                wrong = (wanted != new.view(pool.num_blocks, size, -1)).any(dim=2).nonzero().tolist()
                assert not wrong, f"quantity {index}, {sources} to {targets}: wrong at (block, offset) {wrong[:8]}"

    def test_a_sequence_moved_to_other_blocks_attends_the_same(self) -> None:
        """Export, import into other blocks, forget the old ones: the next step gives the same. A failure points at
        state kept per block id outside the cache tensors."""
        for window, soft_cap in self.layer_kinds():
            pool = self.make_pool(self.shape())
            layer = layer_of(pool.shape, window, soft_cap)
            paged = pool.paged(24, num_computed=23)
            moved = pool.twin(paged)
            pool.blocks_of(moved, 24)
            kept = paged.blocks[: len(moved.blocks)]
            content = pool.backend.export_blocks(pool.kv, pool.index(kept))
            pool.backend.import_blocks(pool.kv, pool.index(moved.blocks), content)
            pool.poison(kept)
            moved.num_computed = 23
            pool.check([Work(moved, 1)], layer, case="moved")

    def test_an_accepted_path_is_compacted_by_copy_slots(self) -> None:
        """After verification the accepted nodes of a tree lie scattered; `copy_slots` brings them together, and the
        next step sees them as a chain."""
        self.require("tree_mask")
        pool = self.make_pool(self.shape())
        layer = layer_of(pool.shape)
        tree = pool.paged(20, num_computed=9)
        work = Work(tree, 6, (-1, 0, 0, 1, 2, 4))
        pool.step([work], layer)
        accepted = [0, 2, 4, 5]
        slots = pool.slots(work)
        source, target = pool.index([slots[node] for node in accepted]), pool.index(slots[: len(accepted)])
        pool.backend.copy_slots(pool.kv, source, target)
        kept = [*range(9), *(9 + node for node in accepted), 15]
        tree.query, tree.key, tree.value = tree.query[kept], tree.key[kept], tree.value[kept]
        tree.num_computed = 13
        pool.check([Work(tree, 1)], layer, case="compacted path")

    def test_the_last_blocks_of_a_big_pool_are_reached(self) -> None:
        """Ids beyond 16 bits; on CUDA, where such pools are real, element offsets beyond 2^31. Offsets need 64 bits,
        products of block ids and strides included."""
        shape = self.shape(num_heads=2, num_kv_heads=1)
        num_blocks = 70_000
        if shape.device.type == "cuda":
            num_blocks = 2**31 // (shape.block_size * shape.head_dim) + 8
        pool = self._bare_pool(shape, num_blocks)
        paged = pool.paged(2 * shape.block_size)
        paged.blocks = [num_blocks - 1, num_blocks - 2]
        pool.check([Work(paged, 2 * shape.block_size)], layer_of(shape), case=f"last of {num_blocks} blocks")
        paged.num_computed = 2 * shape.block_size - 1
        pool.check([Work(paged, 1)], layer_of(shape), case=f"last of {num_blocks} blocks, decode")

    def _bare_pool(self, shape: Shape, num_blocks: int) -> Pool:
        """A pool too large to fill with NaN, but for its last two blocks. The allocator may give what an earlier pool
        had: there the right result could still lie."""
        pool = self.make_pool(shape, 1)
        spec = pool.backend.kv_cache_spec(num_blocks)
        sizes = zip(spec.shapes, spec.dtypes, strict=True)
        pool.kv = [torch.empty(size, dtype=dtype, device=shape.device) for size, dtype in sizes]
        for part in pool.kv:
            part[-2:] = float("nan") if part.is_floating_point() else 0
        pool.num_blocks = num_blocks
        return pool

    def test_prepare_reads_the_batch_anew(self) -> None:
        """The batch's tensors are views of persistent buffers: the next step has other content at the same addresses.
        A plan that is kept by address or by shape is wrong then."""
        pool = self.make_pool(self.shape())
        layer = layer_of(pool.shape)
        first, second = ([Work(pool.paged(18, 17), 1), Work(pool.paged(9, 6), 3)] for _ in range(2))
        pool.write(first)
        pool.write(second)
        batch, other = pool.batch(first), pool.batch(second)
        query = new_rows(second, "query")
        pool.backend.forward(query, pool.kv, layer, pool.backend.prepare(batch))
        _overwrite(batch, other)
        out = pool.backend.forward(query, pool.kv, layer, pool.backend.prepare(batch))
        check_close(out, pool.expected(second, layer), TOLERANCES[pool.shape.dtype], "second step in the same buffers")

    def test_groups_share_one_backend(self) -> None:
        """One backend object serves all layers: `prepare` is called per KV group, and the layers of the groups then
        take turns. Layers of one group may differ in scale and soft cap."""
        pool = self.make_pool(self.shape())
        works = [Work(pool.paged(40), 40), Work(pool.paged(30, 29), 1), Work(pool.paged(23, 18), 5)]
        pool.write(works)
        kinds = self.layer_kinds()
        metadata = {window: pool.backend.prepare(pool.batch(works, window=window)) for window, _ in kinds}
        query = new_rows(works, "query")
        for window, soft_cap in [*kinds, *kinds]:
            layer = layer_of(pool.shape, window, soft_cap)
            out = pool.backend.forward(query, pool.kv, layer, metadata[window])
            case = f"layers in turn, window {window}, soft_cap {soft_cap}"
            check_close(out, pool.expected(works, layer), TOLERANCES[pool.shape.dtype], case)


def _overwrite(batch: AttentionBatch, other: AttentionBatch) -> None:
    """Puts the content of `other` into the tensors of `batch`, which have the same shapes."""
    batch.cu_seqlens_q.copy_(other.cu_seqlens_q)
    batch.seq_lens.copy_(other.seq_lens)
    batch.positions.copy_(other.positions)
    batch.block_table.copy_(other.block_table)
    batch.slot_mapping.copy_(other.slot_mapping)
