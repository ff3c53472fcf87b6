"""What the Triton backends declare; no torch, no triton, so that plugins can be listed without them."""

from __future__ import annotations

import os

from tokenloom.interfaces.contract import Capabilities

__all__ = ["HEAD_DIMS", "is_interpreter_wanted", "triton_capabilities"]

HEAD_DIMS = (16, 32, 64, 80, 96, 112, 128, 160, 192, 256)
"""Sizes of models' heads that the kernels are compiled and tested for; those between powers of two are padded."""


def is_interpreter_wanted() -> bool:
    """Whether Triton is to interpret its kernels on the CPU, which tests do."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def triton_capabilities() -> Capabilities:
    """Of `triton_paged` and `triton_flash`: GPUs, and in Triton's interpreter the CPU, whose bfloat16 is wrong."""
    is_interpreted = is_interpreter_wanted()
    return Capabilities(
        devices=("cuda", "cpu") if is_interpreted else ("cuda",),
        dtypes=("float32", "float16") if is_interpreted else ("float32", "bfloat16", "float16"),
        head_dims=HEAD_DIMS,
        flags=frozenset({"sliding_window", "soft_cap", "tree_mask", "sinks"}),
        requires=("triton",),
    )
