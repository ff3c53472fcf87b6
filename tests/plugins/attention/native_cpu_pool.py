"""Pools of `native_cpu`, and the levels of instructions that its kernels exist for.

Import it as `from tests.plugins.attention.native_cpu_pool import make_pool`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
import torch

from tokenloom.testing.paged_pool import Pool, Shape
from tokenloom_attention.native_cpu import NativeCpuConfig
from tokenloom_attention.native_cpu.kernels import load_kernels
from tokenloom_attention.native_cpu.reference import quantize

__all__ = ["LEVELS", "as_int8", "at_level", "make_pool"]

LEVELS = ("amx", "avx512", "avx2", "portable")


def make_pool(shape: Shape, num_blocks: int = 1500, kv_dtype: Literal["auto", "int8"] = "auto") -> Pool:
    """A pool full of NaN."""
    backend = NativeCpuConfig(kv_dtype=kv_dtype).build(shape.context())
    if kv_dtype == "int8":
        return Pool(backend, shape, num_blocks, as_stored=as_int8)
    return Pool(backend, shape, num_blocks)


def as_int8(tokens: torch.Tensor) -> torch.Tensor:
    """What an int8 cache gives back for keys or values [n, Hkv, D]."""
    rounded, scales = quantize(tokens)
    return rounded * scales[..., None]


@contextmanager
def at_level(name: str) -> Iterator[None]:
    """Runs the kernels of one level of instructions; skips the running test on a processor that lacks it."""
    kernels = load_kernels()
    usual = kernels.current_isa()
    if not kernels.set_isa(name):
        pytest.skip(f"this processor has no {name}")
    try:
        yield
    finally:
        kernels.set_isa(usual)
