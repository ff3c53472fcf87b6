"""From 32-bit words to the small whole numbers that lie in them, lowest bits first; numbers may straddle words."""

from __future__ import annotations

import torch

__all__ = ["unpacked"]


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpacks the last dimension, read as one row of bits.

    Args:
        words: int32 [..., W]; 3 bits need W to be a multiple of 3.
        bits: 2, 3, 4 or 8.

    Returns:
        uint8 [..., 32 W / bits].
    """
    octets = words.contiguous().view(torch.uint8)  # little-endian: the lowest bits of a word come first
    if bits == 8:
        return octets
    if bits == 3:
        # Three bytes hold eight numbers.
        triples = octets.view(*octets.shape[:-1], -1, 3).int()
        joined = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
        return torch.stack([(joined >> 3 * place & 7).to(torch.uint8) for place in range(8)], dim=-1).flatten(-2)
    assert bits in (2, 4), f"no words hold numbers of {bits} bits"
    per_octet, most = 8 // bits, (1 << bits) - 1
    return torch.stack([octets >> bits * place & most for place in range(per_octet)], dim=-1).flatten(-2)
