"""What the C++ must compute, in plain PyTorch and fp32: the rounding of int8 caches, and attention over what is stored.

Dense attention itself is `tokenloom.testing.attention_reference.reference_forward`, which reads blocks in the layout of
`export_blocks`; with int8 they are dequantized here first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["dequantized", "quantize"]


def quantize(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric int8 of keys or values: each head of each token has a scale of its own, absmax / 127.

    Args:
        tokens: [n, Hkv, D], float32 or bfloat16.

    Returns:
        (int8 [n, Hkv, D], fp32 scales [n, Hkv]); a head of zeros has scale 0.
    """
    exact = tokens.float()
    scales = exact.abs().amax(dim=-1) / 127
    divisors = torch.where(scales > 0, scales, 1.0)[..., None]
    return (exact / divisors).round().clamp(-127, 127).to(torch.int8), scales


def dequantized(content: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, each fp32 [n, BS, Hkv, D], from what `export_blocks` returns: with or without scales."""
    keys, values, *scales = content
    if not scales:
        return keys.float(), values.float()
    return keys * scales[0][..., None], values * scales[1][..., None]
