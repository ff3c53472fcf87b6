"""GGUF types without sub-blocks: plain numbers, and blocks of 32 with one scale (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0)."""

from __future__ import annotations

import torch

from tokenloom.loader.gguf_block import BlockType, bits, half, nibbles

__all__ = ["SIMPLE_TYPES"]


def _decode_f32(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.view(torch.float32)


def _decode_f16(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.view(torch.float16).float()


def _decode_bf16(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.view(torch.bfloat16).float()


def _decode_f64(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.view(torch.float64).float()


def _decode_i8(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.view(torch.int8).float()


def _decode_i16(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.view(torch.int16).float()


def _decode_q4_0(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | 32 nibbles;  d * (q - 8)
    return (nibbles(blocks[:, 2:]).float() - 8.0).mul_(half(blocks, 0))


def _decode_q4_1(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | m f16 | 32 nibbles;  d * q + m
    return nibbles(blocks[:, 4:]).float().mul_(half(blocks, 0)).add_(half(blocks, 2))


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [num_blocks, 4] -> uint8 [num_blocks, 32], 0 or 16: bit j of the 32-bit word belongs to element j."""
    return bits(packed).transpose(1, 2).reshape(-1, 32) << 4


def _decode_q5_0(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | 32 fifth bits | 32 nibbles;  d * (q - 16)
    quants = nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return (quants.float() - 16.0).mul_(half(blocks, 0))


def _decode_q5_1(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | m f16 | 32 fifth bits | 32 nibbles;  d * q + m
    quants = nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return quants.float().mul_(half(blocks, 0)).add_(half(blocks, 2))


def _decode_q8_0(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | 32 int8;  d * q
    return blocks[:, 2:].view(torch.int8).float().mul_(half(blocks, 0))


SIMPLE_TYPES: tuple[BlockType, ...] = (
    BlockType(0, "F32", 1, 4, _decode_f32),
    BlockType(1, "F16", 1, 2, _decode_f16),
    BlockType(2, "Q4_0", 32, 18, _decode_q4_0),
    BlockType(3, "Q4_1", 32, 20, _decode_q4_1),
    BlockType(6, "Q5_0", 32, 22, _decode_q5_0),
    BlockType(7, "Q5_1", 32, 24, _decode_q5_1),
    BlockType(8, "Q8_0", 32, 34, _decode_q8_0),
    BlockType(24, "I8", 1, 1, _decode_i8),
    BlockType(25, "I16", 1, 2, _decode_i16),
    BlockType(28, "F64", 1, 8, _decode_f64),
    BlockType(30, "BF16", 1, 2, _decode_bf16),
)
"""Wider integers are not among them: float32 does not hold them exactly."""
