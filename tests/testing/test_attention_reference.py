"""The dense reference against sums written out by hand: other attention tests rest on it."""

from __future__ import annotations

import itertools
import math

import torch

from tokenloom.testing.attention_reference import reference_attend, reference_forward, reference_visible
from tokenloom.testing.paged_pool import Pool, Shape, Work, layer_of, new_rows
from tokenloom.testing.reference_backend import ReferenceBackend


def test_visible_without_window_is_causal() -> None:
    visible = reference_visible(2, torch.tensor([2, 3, 4]), None, None)
    assert visible.int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def test_visible_with_window_counts_the_token_itself() -> None:
    visible = reference_visible(2, torch.tensor([2, 3, 4]), 2, None)
    assert visible.int().tolist() == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]


def test_visible_in_a_tree_measures_the_window_by_position() -> None:
    #   slot 3 (position 3) has the children in slots 4 and 5 (position 4); slot 6 (position 5) hangs on slot 4
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
    visible = reference_visible(3, torch.tensor([3, 4, 4, 5]), 3, mask)
    assert visible.int().tolist() == [
        [0, 1, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 1, 0],
        [0, 0, 0, 1, 1, 0, 1],
    ]


def test_attend_equals_sums_written_out() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 4, 5), torch.randn(4, 2, 5), torch.randn(4, 2, 5)
    visible = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    out = reference_attend(query, key, value, visible, 0.3, soft_cap=1.5)
    for row in range(3):
        for head in range(4):
            seen = [slot for slot in range(4) if visible[row, slot]]
            scores = [0.3 * float(query[row, head] @ key[slot, head // 2]) for slot in seen]
            weights = [math.exp(1.5 * math.tanh(score / 1.5)) for score in scores]
            wanted = torch.zeros(5)
            for slot, weight in zip(seen, weights):
                wanted += weight / sum(weights) * value[slot, head // 2]
            torch.testing.assert_close(out[row, head], wanted)


def test_a_sink_takes_its_weight_from_every_key_alike() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 4, 5), torch.randn(4, 2, 5), torch.randn(4, 2, 5)
    visible = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    sinks = torch.tensor([-1.0, 0.5, 2.0, 100.0])
    plain = reference_attend(query, key, value, visible, 0.3)
    out = reference_attend(query, key, value, visible, 0.3, sinks=sinks)
    for row, head in itertools.product(range(3), range(4)):
        seen = [slot for slot in range(4) if visible[row, slot]]
        total = sum(math.exp(0.3 * float(query[row, head] @ key[slot, head // 2])) for slot in seen)
        kept = total / (total + math.exp(float(sinks[head])))
        torch.testing.assert_close(out[row, head], kept * plain[row, head])


def test_attend_ignores_nan_where_nothing_is_visible() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 2, 4), torch.randn(3, 1, 4), torch.randn(3, 1, 4)
    visible = torch.tensor([[1, 0, 1], [0, 0, 1]], dtype=torch.bool)
    clean = reference_attend(query, key, value, visible, 0.5)
    key[1], value[1] = torch.nan, torch.nan
    assert torch.equal(reference_attend(query, key, value, visible, 0.5), clean)


def test_forward_reads_canonical_blocks_of_freed_and_ragged_sequences() -> None:
    shape = Shape(block_size=4)
    pool = Pool(ReferenceBackend(shape.context()), shape, num_blocks=40)
    works = [
        Work(pool.paged(9), 9),
        Work(pool.paged(30, 27), 3),
        Work(pool.paged(6, 5), 1),
        Work(pool.paged(15, 9), 4, (-1, 0, 0, 2)),
    ]
    pool.free_left_of_window(works[1].paged, 7)
    pool.write(works)
    num_blocks = pool.kv[0].shape[0]
    key_blocks, value_blocks = pool.backend.export_blocks(pool.kv, torch.arange(num_blocks))
    layer = layer_of(pool.shape, window=7)
    query = torch.cat([new_rows(works, "query"), torch.full((1, 4, 16), torch.nan)])
    out = reference_forward(query, key_blocks, value_blocks, pool.batch(works, num_padding=1), layer)
    torch.testing.assert_close(out[:-1], pool.expected(works, layer))
    assert bool((out[-1] == 0).all())
