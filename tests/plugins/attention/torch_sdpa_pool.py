"""A pool of `torch_sdpa` with tiles so small that a step needs several.

Import it as `from tests.plugins.attention.torch_sdpa_pool import make_pool`.
"""

from __future__ import annotations

from tokenloom.testing.paged_pool import Pool, Shape
from tokenloom_attention.torch_sdpa import TorchSdpaConfig

__all__ = ["make_pool"]


def make_pool(shape: Shape, seed: int = 0, num_blocks: int = 1500) -> Pool:
    """A pool full of NaN."""
    return Pool(TorchSdpaConfig(tile_kib=64).build(shape.context()), shape, num_blocks, seed)
