"""Small whole numbers side by side in 32-bit words, lowest bits first; numbers may straddle words."""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["packed_words"]

_PER_WORDS = 32
"""So many numbers of any width fill whole words."""
_TOGETHER = 8
"""Numbers of up to 7 bits that fill whole bytes together, and fit into an int64."""


def packed_words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs the last dimension, as one row of bits.

    Args:
        codes: uint8 [..., n], below 2^bits.
        bits: 1 to 8.

    Returns:
        int32 [..., ceil(n * bits / 32)]; bits beyond the last number are 0.
    """
    num_words = -(-codes.shape[-1] * bits // 32)
    padded = functional.pad(codes, (0, -codes.shape[-1] % _PER_WORDS))
    if bits == 8:
        octets = padded
    else:
        together = padded.view(*padded.shape[:-1], -1, _TOGETHER).long()
        joined = (together << (torch.arange(_TOGETHER) * bits)).sum(dim=-1)  # [..., n / 8]
        octets = torch.stack([(joined >> 8 * place & 255).to(torch.uint8) for place in range(bits)], dim=-1).flatten(-2)
    words = octets.flatten().view(torch.int32).view(*octets.shape[:-1], -1)  # little-endian
    return words[..., :num_words].contiguous()
