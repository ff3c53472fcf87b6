"""The cache of `torch_sdpa`: its size, what is stored, copies, and the canonical layout for transfer."""

from __future__ import annotations

import math

import pytest
import torch

from tests.plugins.attention.paged_pool import Pool, Shape, Work, layer_of, new_rows

BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def random_bits(pool: Pool) -> None:
    """Fills the cache with every kind of bit pattern, NaN payloads included."""
    generator = torch.Generator().manual_seed(0)
    for cache in pool.kv:
        bits = torch.randint(0, 256, (cache.numel() * cache.itemsize,), dtype=torch.uint8, generator=generator)
        cache.copy_(bits.view(cache.dtype).view(cache.shape))


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.contiguous().view(BITS[left.dtype]), right.contiguous().view(BITS[right.dtype]))


@pytest.mark.parametrize("dtype", list(BITS))
@pytest.mark.parametrize("block_size", [1, 16, 17])
def test_kv_cache_spec_states_its_bytes_exactly(block_size: int, dtype: torch.dtype) -> None:
    backend = Pool(Shape(block_size=block_size, dtype=dtype), num_blocks=2).backend
    for num_blocks in (1, 7, 100):
        spec = backend.kv_cache_spec(num_blocks)
        stated = [math.prod(shape) * kind.itemsize for shape, kind in zip(spec.shapes, spec.dtypes)]
        assert sum(stated) == num_blocks * spec.page_bytes
        assert spec.dtypes == (dtype, dtype)


@pytest.mark.parametrize("dtype", list(BITS))
def test_write_kv_stores_each_token_at_its_slot_and_nothing_else(dtype: torch.dtype) -> None:
    pool = Pool(Shape(block_size=4, dtype=dtype), num_blocks=30)
    works = [Work(pool.paged(11, 3), 6), Work(pool.paged(5), 5)]
    before = pool.backend.export_blocks(pool.kv, torch.arange(30))
    pool.write(works)
    slots = torch.tensor([slot for work in works for slot in pool.slots(work)])
    others = torch.ones(120, dtype=torch.bool)
    others[slots] = False
    for cache, old, name in zip(pool.backend.export_blocks(pool.kv, torch.arange(30)), before, ("key", "value")):
        assert same_bits(cache.flatten(0, 1)[slots], new_rows(works, name))
        assert same_bits(cache.flatten(0, 1)[others], old.flatten(0, 1)[others])


def test_write_kv_takes_strided_keys_and_values() -> None:
    pool = Pool(Shape(block_size=4), num_blocks=30)
    works = [Work(pool.paged(9), 9)]
    batch = pool.batch(works)
    fused = torch.cat([new_rows(works, "key"), new_rows(works, "value")], dim=1)
    pool.backend.write_kv(pool.kv, fused[:, :2], fused[:, 2:], pool.backend.prepare(batch))
    key, value = (part.flatten(0, 1)[batch.slot_mapping] for part in pool.kv)
    assert torch.equal(key, new_rows(works, "key"))
    assert torch.equal(value, new_rows(works, "value"))


def test_write_kv_does_not_store_negative_slots() -> None:
    pool = Pool(Shape(block_size=4), num_blocks=30)
    works = [Work(pool.paged(6), 6)]
    batch = pool.batch(works)
    unstored = batch.slot_mapping[[1, 4]]
    batch.slot_mapping[1], batch.slot_mapping[4] = -1, -7
    pool.backend.write_kv(pool.kv, new_rows(works, "key"), new_rows(works, "value"), pool.backend.prepare(batch))
    for cache in pool.kv:
        slots = cache.flatten(0, 1)
        assert bool(slots[unstored].isnan().all())
        assert int((~slots.isnan()).all(dim=(1, 2)).sum()) == 4


@pytest.mark.parametrize("dtype", list(BITS))
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (range(1, 40), range(39)),
        (range(39), range(1, 40)),
        ((9, 3, 27), (3, 9, 50)),
        ((5, 5, 5), (6, 7, 8)),
        ((), ()),
    ],
    ids=["down", "up", "swap", "spread", "nothing"],
)
def test_copy_slots_reads_all_before_it_writes(
    source: tuple[int, ...], target: tuple[int, ...], dtype: torch.dtype
) -> None:
    pool = Pool(Shape(block_size=4, dtype=dtype), num_blocks=20)
    random_bits(pool)
    before = [cache.flatten(0, 1).clone() for cache in pool.backend.export_blocks(pool.kv, torch.arange(20))]
    to_index = [torch.tensor(list(slots), dtype=torch.int64) for slots in (source, target)]
    pool.backend.copy_slots(pool.kv, to_index[0], to_index[1])
    for cache, old in zip(pool.backend.export_blocks(pool.kv, torch.arange(20)), before):
        wanted = old.clone()
        for start, stop in zip(source, target):
            wanted[stop] = old[start]
        assert same_bits(cache.flatten(0, 1), wanted)


@pytest.mark.parametrize("dtype", list(BITS))
def test_import_restores_exported_blocks_bit_for_bit(dtype: torch.dtype) -> None:
    shape = Shape(6, 3, head_dim=80, block_size=17, dtype=dtype)
    pool = Pool(shape, num_blocks=12)
    random_bits(pool)
    before = [cache.clone() for cache in pool.kv]
    ids = torch.tensor([7, 2, 11])
    content = pool.backend.export_blocks(pool.kv, ids)
    assert [part.shape for part in content] == [(3, 17, 3, 80)] * 2
    assert all(part.is_contiguous() for part in content)
    for cache in pool.kv:
        cache[ids] = 0
    assert not same_bits(content[0], pool.backend.export_blocks(pool.kv, ids)[0])
    pool.backend.import_blocks(pool.kv, ids, content)
    assert all(same_bits(cache, old) for cache, old in zip(pool.kv, before))


def test_a_sequence_moved_to_other_blocks_attends_the_same() -> None:
    pool = Pool(Shape(block_size=4))
    paged = pool.paged(20, num_computed=13)
    out = pool.step([Work(paged, 1)], layer_of(pool.shape))
    content = pool.backend.export_blocks(pool.kv, torch.tensor(paged.blocks))
    moved = pool.twin(paged)
    pool.batch([Work(moved, 14)])  # gives it blocks
    pool.backend.import_blocks(pool.kv, torch.tensor(moved.blocks), content)
    for cache in pool.kv:
        cache[paged.blocks] = torch.nan
    moved.num_computed = 13
    assert torch.equal(pool.step([Work(moved, 1)], layer_of(pool.shape)), out)


def test_an_accepted_tree_path_is_compacted_by_copy_slots() -> None:
    pool = Pool(Shape(block_size=4))
    layer = layer_of(pool.shape)
    tree = pool.paged(20, num_computed=9)
    work = Work(tree, 6, (-1, 0, 0, 1, 2, 4))
    pool.step([work], layer)
    accepted = [0, 2, 4, 5]
    slots = pool.slots(work)
    source = torch.tensor([slots[node] for node in accepted])
    pool.backend.copy_slots(pool.kv, source, torch.tensor(slots[: len(accepted)]))
    kept = [*range(9), *(9 + node for node in accepted), 15]
    tree.query, tree.key, tree.value = tree.query[kept], tree.key[kept], tree.value[kept]
    tree.num_computed = 13
    pool.check([Work(tree, 1)], layer)


@pytest.mark.slow
def test_slots_beyond_two_to_the_31_elements_are_reached() -> None:
    shape = Shape(8, 8, head_dim=256, block_size=32, dtype=torch.bfloat16)
    num_blocks = 2**31 // (8 * 256 * 32) + 8
    pool = Pool(shape, num_blocks=2)
    # Untouched pages of `empty` take no memory.
    pool.kv = [torch.empty(size, dtype=torch.bfloat16) for size in pool.backend.kv_cache_spec(num_blocks).shapes]
    paged = pool.paged(40)
    paged.blocks = [num_blocks - 1, num_blocks - 2]
    pool.check([Work(paged, 40)], layer_of(shape))
    paged.num_computed = 39
    pool.check([Work(paged, 1)], layer_of(shape))
