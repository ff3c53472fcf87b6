"""What the attention suites share: the shapes that a backend is tried with, by what it declares, and steps of work."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest
import torch

from tokenloom.interfaces.attention import AttentionBackend, AttentionConfig
from tokenloom.testing.numeric_device import default_dtype, numeric_device
from tokenloom.testing.paged_pool import Pool, Shape, Work
from tokenloom.testing.suite import PluginSuite

__all__ = ["ANY_HEAD_DIMS", "HEADS", "AttentionCases", "mixed_works"]

HEADS = ((8, 8), (8, 2), (8, 1), (6, 3))
"""(Hq, Hkv): one to one, groups, a single KV head, and sizes that are no powers of two."""

ANY_HEAD_DIMS = (16, 64, 80, 96, 128)
"""Head sizes that models have; tried with backends that declare none."""


class AttentionCases(PluginSuite):
    """Builds backends and works for the attention suites.

    Attributes:
        device: "cpu" or "cuda"; None takes the CPU if the plugin declares it, else CUDA if the machine has it.
    """

    kind: ClassVar[str] = "attention"
    device: ClassVar[str | None] = None

    def as_stored(self, tokens: torch.Tensor) -> torch.Tensor:
        """What the cache gives back for keys or values [n, Hkv, D]: themselves. A backend that quantizes its cache
        overrides it with the round trip, because attention reads K and V as stored."""
        return tokens

    def shape(self, **changes: Any) -> Shape:
        """A small shape that the backend declares: its most exact dtype, smallest head size and block size from 4."""
        values: dict[str, Any] = {
            "head_dim": min(self.head_dims()),
            "block_size": next(size for size in self.block_sizes() if size >= 4),
            "device": numeric_device(self.capabilities, self.device),
        }
        if "dtype" not in changes:
            values["dtype"] = default_dtype(self.capabilities)
        return Shape(**{**values, **changes})

    def head_dims(self) -> tuple[int, ...]:
        """The head sizes to try."""
        return self.capabilities.head_dims or ANY_HEAD_DIMS

    def block_sizes(self) -> tuple[int, ...]:
        """The block sizes to try, ascending."""
        multiple = self.capabilities.block_size_multiple
        usual = {size for size in (1, 4, 16, 32) if size % multiple == 0}
        return tuple(sorted(usual or {multiple, 2 * multiple}))

    def make_backend(self, shape: Shape) -> AttentionBackend:
        """Builds the plugin for a shape."""
        config = self.make_config()
        assert isinstance(config, AttentionConfig), f"{self.info.config} is no AttentionConfig"
        return config.build(shape.context())

    def make_pool(self, shape: Shape, num_slots: int = 600, seed: int = 0) -> Pool:
        """A pool for some dozens of requests with `num_slots` tokens in all, as `shape` wants it."""
        num_blocks = 40 + num_slots // shape.block_size
        return Pool(self.make_backend(shape), shape, num_blocks, seed, self.as_stored)

    def require(self, flag: str) -> None:
        """Skips the running test where the plugin does not claim `flag` on the device that it is tested on."""
        if not self.capabilities.has_flag(flag, numeric_device(self.capabilities, self.device).type):
            pytest.skip(f"{self.info.kind}={self.info.name} does not claim the flag {flag}")

    def layer_kinds(self) -> list[tuple[int | None, float | None]]:
        """(window, soft cap) of the layers that the plugin claims to run."""
        flags = self.capabilities.flags
        kinds: list[tuple[int | None, float | None]] = [(None, None)]
        if "sliding_window" in flags:
            kinds.append((4, None))
        if "soft_cap" in flags:
            kinds.append((None, 2.0))
        if {"sliding_window", "soft_cap"} <= flags:
            kinds.append((17, 2.0))
        return kinds


def mixed_works(pool: Pool, seed: int = 0) -> list[Work]:
    """Prompts, chunks, decodes and verifications of ragged lengths around a block's size, in random order."""
    size = pool.shape.block_size
    works: list[Work] = []
    for length in sorted({1, size - 1, size, size + 1, 17, 129} - {0}):
        works += [
            Work(pool.paged(length), length),
            Work(pool.paged(length, length - 1), 1),
            Work(pool.paged(length, length // 2), length - length // 2),
            Work(pool.paged(length + 4, length), 4),
        ]
    random.Random(seed).shuffle(works)
    return works
