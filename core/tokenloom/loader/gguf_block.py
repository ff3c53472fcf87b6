"""What a GGUF tensor type is, and the bit fields that its decoders share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["BlockType", "bits", "half", "nibbles", "two_bit_fields", "words"]

_PAIR_SHIFTS = torch.tensor((0, 2, 4, 6), dtype=torch.uint8).view(4, 1)
_BIT_SHIFTS = torch.arange(8, dtype=torch.uint8).view(8, 1)


@dataclass(frozen=True, slots=True)
class BlockType:
    """One tensor type.

    Every decoder computes in float32 in the order that the format's reference uses, so the values agree bit for bit.

    Attributes:
        type_id: the number in the file.
        name: the name that tools print, e.g. "Q4_K".
        block_elements: elements of one block; blocks run along the last (input) dimension.
        block_bytes: bytes of one block.
        decode: uint8 [num_blocks, block_bytes] -> float32 [num_blocks, block_elements].
    """

    type_id: int
    name: str
    block_elements: int
    block_bytes: int
    decode: Callable[[torch.Tensor], torch.Tensor]


def half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 at byte `start` of each block, as float32 [num_blocks, 1]."""
    return blocks[:, start : start + 2].view(torch.float16).float()


def nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [..., n] -> uint8 [..., 2 * n]: all low nibbles first, then all high ones."""
    return torch.cat((packed & 0x0F, packed >> 4), dim=-1)


def two_bit_fields(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [..., n] -> uint8 [..., 4, n]: the lowest two bits of every byte first, then the next two, ..."""
    return (packed.unsqueeze(-2) >> _PAIR_SHIFTS) & 0x03


def bits(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [..., n] -> uint8 [..., 8, n]: the lowest bit of every byte first, then the next, ..."""
    return (packed.unsqueeze(-2) >> _BIT_SHIFTS) & 0x01


def words(packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """uint8 [num_blocks, n] -> int64 [num_blocks, n / size]: little-endian words, unsigned.

    Args:
        packed: part of the blocks; need not be contiguous.
        dtype: int16 or int32, for the size of a word.
    """
    mask = (1 << 8 * dtype.itemsize) - 1
    # A copy starts at offset 0, as the view needs; a single block counts as contiguous at any offset.
    return packed.clone(memory_format=torch.contiguous_format).view(dtype).long() & mask
