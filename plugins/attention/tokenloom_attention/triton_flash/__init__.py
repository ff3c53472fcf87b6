"""Attention of prompts over contiguous keys and values in Triton; everything else as in triton_paged."""

from __future__ import annotations

from tokenloom_attention.triton_flash.backend import TritonFlashBackend, TritonFlashConfig

__all__ = ["TritonFlashBackend", "TritonFlashConfig"]
