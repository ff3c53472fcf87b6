"""GGUF types of 256 elements with a scale per sub-block (Q2_K to Q6_K), and the ternary ones (TQ1_0, TQ2_0)."""

from __future__ import annotations

import torch

from tokenloom.loader.gguf_block import BlockType, bits, half, nibbles, two_bit_fields

__all__ = ["K_TYPES"]


def _decode_q2_k(blocks: torch.Tensor) -> torch.Tensor:
    # 16 bytes: scale in the low nibble, minimum in the high one | 64 bytes of 2-bit quants | d f16 | dmin f16
    # per sub-block of 16: (d * scale) * q - (dmin * minimum)
    step = half(blocks, 80) * (blocks[:, :16] & 0x0F).float()  # [num_blocks, 16]
    offset = half(blocks, 82) * (blocks[:, :16] >> 4).float()
    quants = two_bit_fields(blocks[:, 16:80].view(-1, 2, 32)).view(-1, 16, 16)
    return quants.float().mul_(step.unsqueeze(-1)).sub_(offset.unsqueeze(-1)).view(-1, 256)


def _decode_q3_k(blocks: torch.Tensor) -> torch.Tensor:
    # 32 bytes of third bits | 64 bytes of 2-bit quants | 12 bytes: 16 scales of 6 bits | d f16
    # (d * (scale - 32)) * (q - 4), 16 per scale
    low = nibbles(blocks[:, 96:104])  # [num_blocks, 16]
    high = two_bit_fields(blocks[:, 104:108]).view(-1, 16)
    step = half(blocks, 108) * (low | (high << 4)).float().sub_(32.0)
    third = bits(blocks[:, :32]).view(-1, 2, 4, 32)
    quants = two_bit_fields(blocks[:, 32:96].view(-1, 2, 32)) | (third << 2)
    return quants.view(-1, 16, 16).float().sub_(4.0).mul_(step.unsqueeze(-1)).view(-1, 256)


def _scales_and_offsets(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The step and the offset of each of the 8 sub-blocks of Q4_K and Q5_K: float32 [num_blocks, 8, 1] each.

    d f16 | dmin f16 | 12 bytes: 8 scales and 8 minima of 6 bits.
    """
    first, second, mixed = blocks[:, 4:16].view(-1, 3, 4).unbind(1)  # each uint8 [num_blocks, 4]
    scales = torch.cat((first & 0x3F, (mixed & 0x0F) | ((first >> 2) & 0x30)), dim=1)
    minima = torch.cat((second & 0x3F, (mixed >> 4) | ((second >> 2) & 0x30)), dim=1)
    return (half(blocks, 0) * scales.float()).unsqueeze(-1), (half(blocks, 2) * minima.float()).unsqueeze(-1)


def _decode_q4_k(blocks: torch.Tensor) -> torch.Tensor:
    # 16 bytes of scales | 4 chunks of 32 bytes, each two sub-blocks of 32;  (d * scale) * q - (dmin * minimum)
    step, offset = _scales_and_offsets(blocks)
    quants = nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32)
    return quants.float().mul_(step).sub_(offset).view(-1, 256)


def _decode_q5_k(blocks: torch.Tensor) -> torch.Tensor:
    # 16 bytes of scales | 32 bytes of fifth bits: bit s of byte j for sub-block s | nibbles and formula as in Q4_K
    step, offset = _scales_and_offsets(blocks)
    quants = nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32) | (bits(blocks[:, 16:48]) << 4)
    return quants.float().mul_(step).sub_(offset).view(-1, 256)


def _decode_q6_k(blocks: torch.Tensor) -> torch.Tensor:
    # 128 bytes: low 4 bits | 64 bytes: high 2 bits | 16 int8 scales | d f16;  (d * scale) * (q - 32), 16 per scale
    # Each half holds 4 rows of 32; row r has its low bits in nibble r // 2 of bytes (r % 2) * 32 .. +31.
    low = nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    high = two_bit_fields(blocks[:, 128:192].view(-1, 2, 32))  # [num_blocks, 2, 4, 32]
    quants = (low | (high << 4)).view(-1, 16, 16).float().sub_(32.0)
    step = half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()  # [num_blocks, 16]
    return quants.mul_(step.unsqueeze(-1)).view(-1, 256)


_POWERS_OF_3 = torch.tensor((1, 3, 9, 27, 81), dtype=torch.uint8).view(5, 1)


def _trits(packed: torch.Tensor, num_digits: int) -> torch.Tensor:
    """uint8 [num_blocks, n] -> uint8 [num_blocks, num_digits * n]: base-3 digits, each byte being a fraction of 256.

    Times 3 ** i, modulo 256, it is the fraction that is left after i digits; times 3 once more, its whole part is the
    next digit.
    """
    left = packed.unsqueeze(1) * _POWERS_OF_3[:num_digits]
    return ((left.short() * 3) >> 8).view(packed.shape[0], -1)


def _decode_tq1_0(blocks: torch.Tensor) -> torch.Tensor:
    # 32 + 16 bytes of 5 ternary digits | 4 bytes of 4 digits | d f16;  d * (q - 1)
    parts = (_trits(blocks[:, :32], 5), _trits(blocks[:, 32:48], 5), _trits(blocks[:, 48:52], 4))
    return torch.cat(parts, dim=1).float().sub_(1.0).mul_(half(blocks, 52))


def _decode_tq2_0(blocks: torch.Tensor) -> torch.Tensor:
    # 64 bytes of 2-bit quants | d f16;  d * (q - 1)
    quants = two_bit_fields(blocks[:, :64].view(-1, 2, 32)).view(-1, 256)
    return quants.float().sub_(1.0).mul_(half(blocks, 64))


K_TYPES: tuple[BlockType, ...] = (
    BlockType(10, "Q2_K", 256, 84, _decode_q2_k),
    BlockType(11, "Q3_K", 256, 110, _decode_q3_k),
    BlockType(12, "Q4_K", 256, 144, _decode_q4_k),
    BlockType(13, "Q5_K", 256, 176, _decode_q5_k),
    BlockType(14, "Q6_K", 256, 210, _decode_q6_k),
    BlockType(34, "TQ1_0", 256, 54, _decode_tq1_0),
    BlockType(35, "TQ2_0", 256, 66, _decode_tq2_0),
)
