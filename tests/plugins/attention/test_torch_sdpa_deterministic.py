"""`deterministic`: a token's result is the same bits whatever shares its step, and however its prompt was cut."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from tests.plugins.attention.paged_pool import Paged, Pool, Shape, Work, layer_of
from tokenloom.errors import CapabilityError
from tokenloom.interfaces.attention import AttentionLayer
from tokenloom_attention.torch_sdpa import TorchSdpaConfig

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LAYERS = [(None, None), (17, None), (None, 2.0)]


def companions(pool: Pool, seed: int) -> list[Work]:
    """Other requests of a step, now and then with a tree."""
    shuffle = random.Random(seed)
    works: list[Work] = []
    for _ in range(shuffle.randrange(5)):
        cached, num_new = shuffle.randrange(1, 60), shuffle.choice([1, 1, 4, 20])
        parents = (-1, *(shuffle.randrange(node) for node in range(1, num_new))) if seed % 2 else None
        works.append(Work(pool.paged(cached + num_new, cached), num_new, parents))
    return works


def run_in_pieces(pool: Pool, paged: Paged, layer: AttentionLayer, pieces: list[int]) -> torch.Tensor:
    """The sequence's outputs when its tokens come in pieces, each in a step with other requests."""
    outs: list[torch.Tensor] = []
    for seed, num_new in enumerate(pieces):
        works = companions(pool, seed)
        place = seed % (len(works) + 1)
        works.insert(place, Work(paged, num_new))
        out = pool.step(works, layer)
        outs.append(out.split([work.num_new for work in works])[place])
        paged.num_computed += num_new
        if layer.window is not None:
            pool.free_left_of_window(paged, layer.window)
    return torch.cat(outs)


@pytest.mark.parametrize(("window", "soft_cap"), LAYERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_deterministic_results_do_not_depend_on_the_batch_or_the_chunks(
    dtype: torch.dtype, window: int | None, soft_cap: float | None
) -> None:
    pool = Pool(Shape(9, 3, head_dim=64, block_size=16, dtype=dtype, deterministic=True))
    layer = layer_of(pool.shape, window, soft_cap)
    paged = pool.paged(75)
    alone = pool.step([Work(pool.twin(paged), 75)], layer)
    for pieces in ([1] * 75, [7] * 10 + [5], [16, 1, 32, 26], [40, 35]):
        assert torch.equal(run_in_pieces(pool, pool.twin(paged), layer, pieces), alone), f"pieces {pieces}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cached", [255, 511])
def test_deterministic_decode_of_a_long_sequence_does_not_depend_on_the_batch(cached: int, dtype: torch.dtype) -> None:
    pool = Pool(Shape(9, 3, head_dim=64, block_size=16, dtype=dtype, deterministic=True))
    layer = layer_of(pool.shape)
    paged = pool.paged(cached + 40, cached)
    alone = pool.step([Work(paged, 1)], layer)[0]
    assert torch.equal(pool.step([Work(paged, 40)], layer)[0], alone)
    others = [Work(pool.paged(length, length - 1), 1) for length in range(100, 600, 25)]
    assert torch.equal(pool.step([*others, Work(paged, 1)], layer)[-1], alone)


@pytest.mark.parametrize("window", [None, 4])
def test_deterministic_results_match_reference(window: int | None) -> None:
    pool = Pool(Shape(block_size=4, deterministic=True))
    works = [Work(pool.paged(70, cached), num_new) for cached, num_new in ((0, 1), (0, 40), (15, 2), (16, 1), (37, 33))]
    works.append(Work(pool.paged(40, 29), 6, (-1, 0, 0, 1, 2, 2)))
    if window is not None:
        for work in works:
            pool.free_left_of_window(work.paged, window)
    pool.check(works, layer_of(pool.shape, window), num_padding=2)


def test_deterministic_is_refused_off_the_cpu() -> None:
    context = replace(Shape(deterministic=True).context(), device=torch.device("cuda"))
    with pytest.raises(CapabilityError, match=r"deterministic on cpu only, got cuda; try engine\.deterministic=false"):
        TorchSdpaConfig().build(context)
