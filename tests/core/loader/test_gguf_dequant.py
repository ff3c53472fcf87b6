"""Block decoders against the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize as oracle
from gguf.quants import quantize

from tokenloom.loader import gguf_dequant
from tokenloom.loader.gguf_dequant import BLOCK_TYPES, UNSUPPORTED_TYPE_NAMES, BlockType, dequantize

HALF_FIELDS = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Where each block keeps its float16 numbers."""

ALL_TYPES = pytest.mark.parametrize("block_type", BLOCK_TYPES.values(), ids=lambda block_type: block_type.name)


def random_rows(block_type: BlockType, num_rows: int, blocks_per_row: int, seed: int) -> torch.Tensor:
    """Random bytes, except that the float16 fields and plain floats are finite."""
    generator = np.random.default_rng(seed)
    if block_type.block_elements == 1:
        values = generator.standard_normal((num_rows, blocks_per_row * 32), dtype=np.float32)
        stored = quantize(values, gguf.GGMLQuantizationType(block_type.type_id))
        return torch.from_numpy(stored.view(np.uint8).reshape(num_rows, -1))
    blocks = generator.integers(0, 256, (num_rows * blocks_per_row, block_type.block_bytes), dtype=np.uint8)
    for start in HALF_FIELDS[block_type.name]:
        halves = generator.standard_normal((blocks.shape[0], 1)).astype(np.float16)
        blocks[:, start : start + 2] = halves.view(np.uint8)
    return torch.from_numpy(blocks.reshape(num_rows, -1))


def oracle_values(raw: torch.Tensor, block_type: BlockType) -> torch.Tensor:
    return torch.from_numpy(oracle(raw.numpy(), gguf.GGMLQuantizationType(block_type.type_id)).copy())


@ALL_TYPES
@pytest.mark.parametrize(("num_rows", "blocks_per_row"), [(1, 1), (17, 3), (129, 2)])
def test_dequantize_equals_reference_bit_for_bit(block_type: BlockType, num_rows: int, blocks_per_row: int) -> None:
    raw = random_rows(block_type, num_rows, blocks_per_row, seed=num_rows)
    values = dequantize(raw, block_type, torch.float32)
    expected = oracle_values(raw, block_type)
    assert values.shape == expected.shape
    assert torch.equal(values.view(torch.int32), expected.view(torch.int32))


@ALL_TYPES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dequantize_to_another_dtype_rounds_the_float32_values(block_type: BlockType, dtype: torch.dtype) -> None:
    raw = random_rows(block_type, 5, 2, seed=7)
    values = dequantize(raw, block_type, dtype)
    assert values.dtype == dtype
    assert torch.equal(values, oracle_values(raw, block_type).to(dtype))


@ALL_TYPES
def test_dequantize_in_chunks_equals_one_piece(block_type: BlockType, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_rows(block_type, 7, 3, seed=3)
    whole = dequantize(raw, block_type, torch.float32)
    monkeypatch.setattr(gguf_dequant, "_CHUNK_ELEMENTS", 2 * block_type.block_elements)
    assert torch.equal(dequantize(raw, block_type, torch.float32), whole)


@ALL_TYPES
def test_dequantize_owns_its_memory(block_type: BlockType) -> None:
    raw = random_rows(block_type, 2, 1, seed=5)
    values = dequantize(raw, block_type, torch.float32)
    before = values.clone()
    raw.zero_()
    assert torch.equal(values, before)


def test_type_table_agrees_with_the_format() -> None:
    for type_id, block_type in BLOCK_TYPES.items():
        kind = gguf.GGMLQuantizationType(type_id)
        assert (block_type.type_id, block_type.name) == (type_id, kind.name)
        assert (block_type.block_elements, block_type.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    for type_id, name in UNSUPPORTED_TYPE_NAMES.items():
        assert gguf.GGMLQuantizationType(type_id).name == name
        assert type_id not in BLOCK_TYPES
