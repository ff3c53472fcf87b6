"""From rows of GGUF blocks to codes, for the types whose numbers are scale * code + minimum: exactly the same numbers.

Layouts are told in the decoders of `tokenloom.loader`, whose numbers these must equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from tokenloom.loader.gguf_block import bits, half, nibbles, two_bit_fields
from tokenloom_quant.low_bit.affine_codes import AffineCodes

__all__ = ["BLOCK_CODES", "BlockCodes"]

_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Codes [num_blocks, elements], scales and minima [num_blocks, groups of a block]."""


@dataclass(frozen=True, slots=True)
class BlockCodes:
    """One type.

    Attributes:
        block_bytes: bytes of a block.
        bits: of the codes, 4 or 8; whatever the type has is stored in these.
        group_size: elements that share a scale.
        take_apart: uint8 [num_blocks, block_bytes] -> codes, scales and minima.
    """

    block_bytes: int
    bits: Literal[4, 8]
    group_size: int
    take_apart: Callable[[torch.Tensor], _Parts]

    def encode(self, rows: torch.Tensor) -> AffineCodes:
        """uint8 [N, bytes of a row] -> codes [N, K]."""
        num_rows = rows.shape[0]
        codes, scale, minimum = self.take_apart(rows.reshape(-1, self.block_bytes))
        return AffineCodes(
            codes.reshape(num_rows, -1),
            scale.reshape(num_rows, -1),
            None if minimum is None else minimum.reshape(num_rows, -1),
            self.bits,
            self.group_size,
        )


def _stored_half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    return half(blocks, start).half()


def _q4_0(blocks: torch.Tensor) -> _Parts:
    return nibbles(blocks[:, 2:]), _stored_half(blocks, 0), None  # d * (q - 8)


def _q4_1(blocks: torch.Tensor) -> _Parts:
    return nibbles(blocks[:, 4:]), _stored_half(blocks, 0), _stored_half(blocks, 2)  # d * q + m


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [num_blocks, 4] -> [num_blocks, 32], 0 or 16."""
    return bits(packed).transpose(1, 2).reshape(-1, 32) << 4


def _q5_0(blocks: torch.Tensor) -> _Parts:
    codes = nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return codes + (128 - 16), _stored_half(blocks, 0), None  # d * (q - 16)


def _q5_1(blocks: torch.Tensor) -> _Parts:
    codes = nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return codes, _stored_half(blocks, 0), _stored_half(blocks, 2)  # d * q + m


def _q8_0(blocks: torch.Tensor) -> _Parts:
    return blocks[:, 2:] ^ 128, _stored_half(blocks, 0), None  # d * q, q signed


def _q2_k(blocks: torch.Tensor) -> _Parts:
    scale = half(blocks, 80) * (blocks[:, :16] & 15).float()
    minimum = -(half(blocks, 82) * (blocks[:, :16] >> 4).float())
    return two_bit_fields(blocks[:, 16:80].view(-1, 2, 32)).flatten(1), scale, minimum


def _q3_k(blocks: torch.Tensor) -> _Parts:
    low, high = nibbles(blocks[:, 96:104]), two_bit_fields(blocks[:, 104:108]).flatten(1)
    scale = half(blocks, 108) * (low | high << 4).float().sub_(32.0)
    third = bits(blocks[:, :32]).view(-1, 2, 4, 32)
    codes = two_bit_fields(blocks[:, 32:96].view(-1, 2, 32)) | third << 2
    return codes.flatten(1) + (8 - 4), scale, None  # scale * (q - 4)


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the eight groups of Q4_K and Q5_K: 12 bytes with scales and minima of 6 bits."""
    first, second, mixed = blocks[:, 4:16].view(-1, 3, 4).unbind(1)
    scales = torch.cat((first & 63, (mixed & 15) | ((first >> 2) & 48)), dim=1)
    minima = torch.cat((second & 63, (mixed >> 4) | ((second >> 2) & 48)), dim=1)
    return half(blocks, 0) * scales.float(), -(half(blocks, 2) * minima.float())


def _q4_k(blocks: torch.Tensor) -> _Parts:
    return nibbles(blocks[:, 16:].view(-1, 4, 32)).flatten(1), *_k_scales(blocks)


def _q5_k(blocks: torch.Tensor) -> _Parts:
    codes = nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32) | bits(blocks[:, 16:48]) << 4
    return codes.flatten(1), *_k_scales(blocks)


def _q6_k(blocks: torch.Tensor) -> _Parts:
    low = nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    codes = low | two_bit_fields(blocks[:, 128:192].view(-1, 2, 32)) << 4
    scale = half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    return codes.flatten(1) + (128 - 32), scale, None  # scale * (q - 32)


BLOCK_CODES: Mapping[str, BlockCodes] = {
    "Q4_0": BlockCodes(18, 4, 32, _q4_0),
    "Q4_1": BlockCodes(20, 4, 32, _q4_1),
    "Q5_0": BlockCodes(22, 8, 32, _q5_0),
    "Q5_1": BlockCodes(24, 8, 32, _q5_1),
    "Q8_0": BlockCodes(34, 8, 32, _q8_0),
    "Q2_K": BlockCodes(84, 4, 16, _q2_k),
    "Q3_K": BlockCodes(110, 4, 16, _q3_k),
    "Q4_K": BlockCodes(144, 4, 32, _q4_k),
    "Q5_K": BlockCodes(176, 8, 32, _q5_k),
    "Q6_K": BlockCodes(210, 8, 16, _q6_k),
}
"""By the format's names; what is missing has numbers that no scale and minimum gives, or is no block."""
