"""Decoding the tensors of GGUF files: the table of their types, and rows of blocks to rows of numbers.

A new type is one decoder and one row in the module of its family.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tokenloom.loader.gguf_block import BlockType
from tokenloom.loader.gguf_grid_blocks import GRID_TYPES
from tokenloom.loader.gguf_k_blocks import K_TYPES
from tokenloom.loader.gguf_simple_blocks import SIMPLE_TYPES
from tokenloom.loader.gguf_table_blocks import TABLE_TYPES

__all__ = ["BLOCK_TYPES", "UNSUPPORTED_TYPE_NAMES", "BlockType", "dequantize"]

_CHUNK_ELEMENTS = 1 << 19
"""Elements decoded at once: 2 MiB of float32, so that intermediates stay in the CPU's cache and memory stays flat."""

BLOCK_TYPES: Mapping[int, BlockType] = {
    block_type.type_id: block_type for block_type in (*SIMPLE_TYPES, *K_TYPES, *TABLE_TYPES, *GRID_TYPES)
}
"""Every type that can be read, by its number in the file."""

UNSUPPORTED_TYPE_NAMES: Mapping[int, str] = {9: "Q8_1", 15: "Q8_K", 26: "I32", 27: "I64", 41: "Q1_0"}
"""Types that the format knows and `BLOCK_TYPES` does not, so that a message can name them."""


def dequantize(raw: torch.Tensor, block_type: BlockType, dtype: torch.dtype) -> torch.Tensor:
    """Decodes rows of blocks: in float32, then cast to the wanted dtype.

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
