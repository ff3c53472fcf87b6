"""The tensor types of GGUF files: how many elements a block holds, in how many bytes, and how to decode it.

Every decoder computes in float32 in the order that the format's reference uses, so the values agree bit for bit; the
cast to the wanted dtype comes last. A new type is one decoder and one row of `BLOCK_TYPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

__all__ = ["BLOCK_TYPES", "UNSUPPORTED_TYPE_NAMES", "BlockType", "dequantize"]

_CHUNK_ELEMENTS = 1 << 19
"""Elements decoded at once: 2 MiB of float32, so that intermediates stay in the CPU's cache and memory stays flat."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """One tensor type.

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


def dequantize(raw: torch.Tensor, block_type: BlockType, dtype: torch.dtype) -> torch.Tensor:
    """Decodes rows of blocks.

    Args:
        raw: uint8 [num_rows, row_bytes], contiguous; row_bytes is a multiple of the type's block_bytes.
        block_type: the type of every block.
        dtype: the floating dtype wanted.

    Returns:
        [num_rows, row_bytes / block_bytes * block_elements] in `dtype`; never shares memory with `raw`.
    """
    num_rows, row_bytes = raw.shape
    assert row_bytes % block_type.block_bytes == 0, (row_bytes, block_type)
    blocks = raw.view(-1, block_type.block_bytes)  # [num_blocks, block_bytes]
    values = torch.empty(blocks.shape[0], block_type.block_elements, dtype=dtype)
    chunk = max(1, _CHUNK_ELEMENTS // block_type.block_elements)
    for start in range(0, blocks.shape[0], chunk):
        values[start : start + chunk] = block_type.decode(blocks[start : start + chunk])
    return values.view(num_rows, -1)


def _decode_f32(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.view(torch.float32)


def _decode_f16(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.view(torch.float16).float()


def _decode_bf16(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.view(torch.bfloat16).float()


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 at byte `start` of each block, as float32 [num_blocks, 1]."""
    return blocks[:, start : start + 2].view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [..., n] -> uint8 [..., 2 * n]: all low nibbles first, then all high ones."""
    return torch.cat((packed & 0x0F, packed >> 4), dim=-1)


def _decode_q4_0(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | 32 nibbles;  d * (q - 8)
    return (_nibbles(blocks[:, 2:]).float() - 8.0).mul_(_half(blocks, 0))


def _decode_q4_1(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | m f16 | 32 nibbles;  d * q + m
    return _nibbles(blocks[:, 4:]).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _decode_q8_0(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | 32 int8;  d * q
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))


def _decode_q4_k(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | dmin f16 | 12 bytes: 8 scales and 8 minima of 6 bits | 4 chunks of 32 bytes, each two sub-blocks of 32
    # per sub-block: (d * scale) * q - (dmin * minimum)
    packed = blocks[:, 4:16].view(-1, 3, 4)
    first, second, mixed = packed.unbind(1)  # each uint8 [num_blocks, 4]
    scales = torch.cat((first & 0x3F, (mixed & 0x0F) | ((first >> 2) & 0x30)), dim=1)
    minima = torch.cat((second & 0x3F, (mixed >> 4) | ((second >> 2) & 0x30)), dim=1)
    step = (_half(blocks, 0) * scales.float()).unsqueeze(-1)  # [num_blocks, 8, 1]
    offset = (_half(blocks, 2) * minima.float()).unsqueeze(-1)
    quants = _nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32)
    return quants.float().mul_(step).sub_(offset).view(-1, 256)


def _decode_q6_k(blocks: torch.Tensor) -> torch.Tensor:
    # 128 bytes: low 4 bits | 64 bytes: high 2 bits | 16 int8 scales | d f16;  (d * scale) * (q - 32), 16 per scale
    # Each half holds 4 rows of 32; row r has its low bits in nibble r // 2 of bytes (r % 2) * 32 .. +31.
    low = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    packed_high = blocks[:, 128:192].view(-1, 2, 1, 32)
    shifts = torch.tensor((0, 2, 4, 6), dtype=torch.uint8).view(1, 1, 4, 1)
    high = (packed_high >> shifts) & 0x03  # [num_blocks, 2, 4, 32]
    quants = (low | (high << 4)).view(-1, 16, 16).float().sub_(32.0)
    step = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()  # [num_blocks, 16]
    return quants.mul_(step.unsqueeze(-1)).view(-1, 256)


BLOCK_TYPES: Mapping[int, BlockType] = {
    block_type.type_id: block_type
    for block_type in (
        BlockType(0, "F32", 1, 4, _decode_f32),
        BlockType(1, "F16", 1, 2, _decode_f16),
        BlockType(2, "Q4_0", 32, 18, _decode_q4_0),
        BlockType(3, "Q4_1", 32, 20, _decode_q4_1),
        BlockType(8, "Q8_0", 32, 34, _decode_q8_0),
        BlockType(12, "Q4_K", 256, 144, _decode_q4_k),
        BlockType(14, "Q6_K", 256, 210, _decode_q6_k),
        BlockType(30, "BF16", 1, 2, _decode_bf16),
    )
}
"""Every type that can be read, by its number in the file."""

UNSUPPORTED_TYPE_NAMES: Mapping[int, str] = {
    6: "Q5_0",
    7: "Q5_1",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    13: "Q5_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""Types that the format knows and `BLOCK_TYPES` does not, so that a message can name them."""
