"""GGUF types whose quants are indices into a codebook of points (IQ1, IQ2 and IQ3), most with signs beside them.

A block has 256 elements. A point gives 8 of them, in IQ3 4.
"""

from __future__ import annotations

import torch

from tokenloom.loader.gguf_block import BlockType, bits, half, two_bit_fields, words
from tokenloom.loader.gguf_codebooks import codebook

__all__ = ["GRID_TYPES"]

_DELTA = 0.125
"""IQ1 shifts all elements of a group by this, up or down."""


def _sign_rows() -> torch.Tensor:
    """[256, 8], 1 or -1: bit j of the row's number set means that element j is negative."""
    return 1.0 - 2.0 * ((torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1).float()


def _even_sign_rows() -> torch.Tensor:
    """[128, 8]: seven signs from the row's number, and the eighth such that the number of negative ones is even."""
    first = _sign_rows()[:128, :7]
    return torch.cat((first, first.prod(dim=1, keepdim=True)), dim=1)


_SIGNS = _sign_rows()
_EVEN_SIGNS = _even_sign_rows()


def _points(name: str, index: torch.Tensor) -> torch.Tensor:
    """int64 [num_blocks, n] -> float32 [num_blocks, n, dimensions of a point]."""
    grid = codebook(name)
    return grid.index_select(0, index.reshape(-1)).view(*index.shape, grid.shape[1])


def _signs(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """[num_blocks, n] of any integer type -> float32 [num_blocks, n, 8]."""
    return table.index_select(0, index.reshape(-1).int()).view(*index.shape, 8)


def _nibble_scales(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [num_blocks, n] -> uint8 [num_blocks, 2 * n]: the low nibble of a byte just before its high one."""
    return torch.stack((packed & 0x0F, packed >> 4), dim=-1).view(packed.shape[0], -1)


def _scaled(points: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Multiplies equal shares of each block's elements by its steps [num_blocks, n]; gives [num_blocks, 256]."""
    return points.reshape(*step.shape, -1).mul_(step.unsqueeze(-1)).view(-1, 256)


def _signs_and_scale(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight 32-bit words: four times 7 bits of signs, then 4 bits of scale.

    Returns:
        float32 [num_blocks, 32, 8] signs, and float32 [num_blocks, 8] scales.
    """
    fields = words(packed, torch.int32)  # [num_blocks, 8]
    index = (fields.unsqueeze(-1) >> torch.arange(0, 28, 7)) & 0x7F  # [num_blocks, 8, 4]
    return _signs(_EVEN_SIGNS, index.view(-1, 32)), (fields >> 28).float()


def _decode_iq2_xxs(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | 8 times: 4 indices of 8 bits, then signs and scale;  (d * (0.5 + scale) * 0.25) * point * sign
    groups = blocks[:, 2:].view(-1, 8, 8)
    signs, scales = _signs_and_scale(groups[:, :, 4:].reshape(-1, 32))
    points = _points("IQ2_XXS", groups[:, :, :4].reshape(-1, 32).long())
    return _scaled(points.mul_(signs), half(blocks, 0) * (0.5 + scales) * 0.25)


def _decode_iq2_xs(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | 32 words: index of 9 bits, 7 of signs | 16 scales of 4 bits;  formula as in IQ2_XXS
    fields = words(blocks[:, 2:66], torch.int16)  # [num_blocks, 32]
    points = _points("IQ2_XS", fields & 0x1FF).mul_(_signs(_EVEN_SIGNS, fields >> 9))
    return _scaled(points, half(blocks, 0) * (0.5 + _nibble_scales(blocks[:, 66:74]).float()) * 0.25)


def _decode_iq2_s(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | 32 low bytes of indices | 32 bytes of signs | high 2 bits of indices | 16 scales;  formula as in IQ2_XXS
    high = two_bit_fields(blocks[:, 66:74]).transpose(1, 2).reshape(-1, 32)
    index = blocks[:, 2:34].long() | (high.long() << 8)
    points = _points("IQ2_S", index).mul_(_signs(_SIGNS, blocks[:, 34:66]))
    return _scaled(points, half(blocks, 0) * (0.5 + _nibble_scales(blocks[:, 74:82]).float()) * 0.25)


def _decode_iq3_xxs(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | 64 indices of 8 bits | 8 words of signs and scale;  (d * (0.5 + scale) * 0.5) * point * sign
    signs, scales = _signs_and_scale(blocks[:, 66:98])
    points = _points("IQ3_XXS", blocks[:, 2:66].long()).view(-1, 32, 8)
    return _scaled(points.mul_(signs), half(blocks, 0) * (0.5 + scales) * 0.5)


def _decode_iq3_s(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | 64 low bytes of indices | 64 high bits | 32 bytes of signs | 8 scales
    # (d * (1 + 2 * scale)) * point * sign
    high = bits(blocks[:, 66:74]).transpose(1, 2).reshape(-1, 64)
    index = blocks[:, 2:66].long() | (high.long() << 8)
    points = _points("IQ3_S", index).view(-1, 32, 8).mul_(_signs(_SIGNS, blocks[:, 74:106]))
    return _scaled(points, half(blocks, 0) * (1.0 + 2.0 * _nibble_scales(blocks[:, 106:110]).float()))


def _decode_iq1_s(blocks: torch.Tensor) -> torch.Tensor:
    # d f16 | 32 low bytes of indices | 8 words: four times 3 high bits of an index, 3 bits of scale, sign of delta
    # (d * (2 * scale + 1)) * (point + delta), 32 per scale
    fields = words(blocks[:, 34:50], torch.int16)  # [num_blocks, 8]
    high = ((fields.unsqueeze(-1) >> torch.arange(0, 12, 3)) & 0x07).view(-1, 32)
    delta = _DELTA - 2.0 * _DELTA * (fields >> 15).float()
    points = _points("IQ1", blocks[:, 2:34].long() | (high << 8)).view(-1, 8, 32).add_(delta.unsqueeze(-1))
    return _scaled(points, half(blocks, 0) * (2.0 * ((fields >> 12) & 0x07).float() + 1.0))


def _decode_iq1_m(blocks: torch.Tensor) -> torch.Tensor:
    # 32 low bytes of indices | 32 nibbles: 3 high bits of an index, sign of its delta | 4 words: four times 3 bits of
    # scale, then 4 bits of d, the lowest in the first word;  (d * (2 * scale + 1)) * (point + delta), 16 per scale
    fields = words(blocks[:, 48:56], torch.int16)  # [num_blocks, 4]
    parts = (fields >> 12) << torch.arange(0, 16, 4)
    d = parts.sum(dim=1, keepdim=True).to(torch.uint16).view(torch.float16).float()
    scales = ((fields.unsqueeze(-1) >> torch.arange(0, 12, 3)) & 0x07).view(-1, 16)
    upper = _nibble_scales(blocks[:, 32:48]).long()  # [num_blocks, 32]
    delta = _DELTA - 2.0 * _DELTA * (upper >> 3).float()
    points = _points("IQ1", blocks[:, :32].long() | ((upper & 0x07) << 8)).add_(delta.unsqueeze(-1))
    return _scaled(points, d * (2.0 * scales.float() + 1.0))


GRID_TYPES: tuple[BlockType, ...] = (
    BlockType(16, "IQ2_XXS", 256, 66, _decode_iq2_xxs),
    BlockType(17, "IQ2_XS", 256, 74, _decode_iq2_xs),
    BlockType(18, "IQ3_XXS", 256, 98, _decode_iq3_xxs),
    BlockType(19, "IQ1_S", 256, 50, _decode_iq1_s),
    BlockType(21, "IQ3_S", 256, 110, _decode_iq3_s),
    BlockType(22, "IQ2_S", 256, 82, _decode_iq2_s),
    BlockType(29, "IQ1_M", 256, 56, _decode_iq1_m),
)
