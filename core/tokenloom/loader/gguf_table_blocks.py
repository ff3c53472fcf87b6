"""GGUF types whose four bits are an index into sixteen values: IQ4_NL, IQ4_XS, MXFP4, NVFP4."""

from __future__ import annotations

import math

import torch

from tokenloom.loader.gguf_block import BlockType, half, nibbles, words

__all__ = ["TABLE_TYPES"]

_UNEVEN_STEPS = torch.tensor(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), dtype=torch.float32
)
_DOUBLED_E2M1 = torch.tensor((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), dtype=torch.float32)
"""The sixteen values of a 4-bit float, doubled to be whole; the scales below are halved for it. It has no -0."""


def _halved_e4m3(byte: int) -> float:
    """Half of the 8-bit float with 4 exponent and 3 fraction bits. Its sign bit is ignored, and 0x7F means 0."""
    exponent, fraction = (byte >> 3) & 0x0F, byte & 0x07
    if byte == 0x7F:
        return 0.0
    return math.ldexp(fraction + 8, exponent - 11) if exponent > 0 else math.ldexp(fraction, -10)


_HALVED_E8M0 = torch.tensor([math.ldexp(1.0, byte - 128) for byte in range(256)], dtype=torch.float32)
"""Half of 2 ** (byte - 127), for each byte; the smallest two are subnormal."""

_HALVED_E4M3 = torch.tensor([_halved_e4m3(byte) for byte in range(256)], dtype=torch.float32)


def _look_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table.index_select(0, index.reshape(-1).int()).view(index.shape)


def _decode_iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | 32 nibbles;  d * value
    return _look_up(_UNEVEN_STEPS, nibbles(blocks[:, 2:])).mul_(half(blocks, 0))


def _decode_iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | high 2 bits of 8 scales | low 4 bits of 8 scales | 8 sub-blocks of 32 nibbles;  (d * (scale - 32)) * value
    high = (words(blocks[:, 2:4], torch.int16) >> torch.arange(0, 16, 2)) & 0x03  # [num_blocks, 8]
    low = torch.stack((blocks[:, 4:8] & 0x0F, blocks[:, 4:8] >> 4), dim=-1).view(-1, 8)
    step = half(blocks, 0) * (low | (high << 4)).float().sub_(32.0)
    values = _look_up(_UNEVEN_STEPS, nibbles(blocks[:, 8:].view(-1, 8, 16)))
    return values.mul_(step.unsqueeze(-1)).view(-1, 256)


def _decode_mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    # scale e8m0 | 32 nibbles;  scale * value
    return _look_up(_DOUBLED_E2M1, nibbles(blocks[:, 1:])).mul_(_look_up(_HALVED_E8M0, blocks[:, :1]))


def _decode_nvfp4(blocks: torch.Tensor) -> torch.Tensor:
    # 4 scales e4m3 | 4 sub-blocks of 16 nibbles;  scale * value
    values = _look_up(_DOUBLED_E2M1, nibbles(blocks[:, 4:].view(-1, 4, 8)))  # [num_blocks, 4, 16]
    return values.mul_(_look_up(_HALVED_E4M3, blocks[:, :4]).unsqueeze(-1)).view(-1, 64)


TABLE_TYPES: tuple[BlockType, ...] = (
    BlockType(20, "IQ4_NL", 32, 18, _decode_iq4_nl),
    BlockType(23, "IQ4_XS", 256, 136, _decode_iq4_xs),
    BlockType(39, "MXFP4", 32, 17, _decode_mxfp4),
    BlockType(40, "NVFP4", 64, 36, _decode_nvfp4),
)
