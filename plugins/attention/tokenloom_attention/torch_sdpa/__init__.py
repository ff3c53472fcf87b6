"""Paged attention in plain PyTorch: correct on every device and head size, fast enough for a small CPU."""

from __future__ import annotations

from tokenloom_attention.torch_sdpa.backend import TorchSdpaBackend, TorchSdpaConfig

__all__ = ["TorchSdpaBackend", "TorchSdpaConfig"]
