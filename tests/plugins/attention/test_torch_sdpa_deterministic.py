"""`deterministic`: a token's result is the same bits whatever shares its step, and however its prompt was cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.plugins.attention.torch_sdpa_pool import make_pool
from tokenloom.errors import CapabilityError
from tokenloom.testing.paged_pool import Shape, Work, layer_of
from tokenloom_attention.torch_sdpa import TorchSdpaConfig

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cached", [255, 511])
def test_deterministic_decode_of_a_long_sequence_does_not_depend_on_the_batch(cached: int, dtype: torch.dtype) -> None:
    pool = make_pool(Shape(9, 3, head_dim=64, block_size=16, dtype=dtype, deterministic=True))
    layer = layer_of(pool.shape)
    paged = pool.paged(cached + 40, cached)
    alone = pool.step([Work(paged, 1)], layer)[0]
    assert torch.equal(pool.step([Work(paged, 40)], layer)[0], alone)
    others = [Work(pool.paged(length, length - 1), 1) for length in range(100, 600, 25)]
    assert torch.equal(pool.step([*others, Work(paged, 1)], layer)[-1], alone)


def test_deterministic_is_refused_off_the_cpu() -> None:
    context = replace(Shape(dtype=torch.bfloat16, deterministic=True).context(), device=torch.device("cuda"))
    with pytest.raises(CapabilityError, match=r"on cpu only, got cuda in .*; try engine\.deterministic=false"):
        TorchSdpaConfig().build(context)
