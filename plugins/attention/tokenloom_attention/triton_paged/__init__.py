"""Paged attention in Triton, for GPUs: prompts, chunks, decode, verification and trees in one launch."""

from __future__ import annotations

from tokenloom_attention.triton_paged.backend import TritonPagedBackend, TritonPagedConfig

__all__ = ["TritonPagedBackend", "TritonPagedConfig"]
