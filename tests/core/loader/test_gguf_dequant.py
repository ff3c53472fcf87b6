"""Block decoders against the `gguf` package, bit for bit, for every type that it can decode."""

from __future__ import annotations

import warnings

import gguf
import numpy as np
import pytest
import torch
from gguf import quants
from gguf.quants import dequantize as oracle
from gguf.quants import quantize

from tokenloom.loader import gguf_dequant
from tokenloom.loader.gguf_dequant import BLOCK_TYPES, UNSUPPORTED_TYPE_NAMES, BlockType, dequantize

HALF_FIELDS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ1_S": (0,),
    "IQ1_M": (),  # in nibbles, so every bit pattern occurs
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
    "NVFP4": (),
}
"""Where each block keeps its float16 numbers."""

WITHOUT_ORACLE = {"I8": np.int8, "I16": np.int16, "F64": np.float64}
"""Types that are plain numbers, for which the package has no decoder: numpy's conversion is the reference."""

ALL_TYPES = pytest.mark.parametrize("block_type", BLOCK_TYPES.values(), ids=lambda block_type: block_type.name)
PACKED_TYPES = pytest.mark.parametrize(
    "block_type",
    [block_type for block_type in BLOCK_TYPES.values() if block_type.block_elements > 1],
    ids=lambda block_type: block_type.name,
)


def random_rows(block_type: BlockType, num_rows: int, blocks_per_row: int, seed: int) -> torch.Tensor:
    """Random bytes, except that the float16 fields and plain floats are finite."""
    generator = np.random.default_rng(seed)
    if block_type.block_elements == 1:
        values = generator.standard_normal((num_rows, blocks_per_row * 32), dtype=np.float32)
        if block_type.name in WITHOUT_ORACLE:
            stored = (values * 40).astype(WITHOUT_ORACLE[block_type.name])
        else:
            stored = quantize(values, gguf.GGMLQuantizationType(block_type.type_id))
        return torch.from_numpy(stored.view(np.uint8).reshape(num_rows, -1))
    blocks = generator.integers(0, 256, (num_rows * blocks_per_row, block_type.block_bytes), dtype=np.uint8)
    for start in HALF_FIELDS[block_type.name]:
        halves = generator.standard_normal((blocks.shape[0], 1)).astype(np.float16)
        blocks[:, start : start + 2] = halves.view(np.uint8)
    return torch.from_numpy(blocks.reshape(num_rows, -1))


def oracle_values(raw: torch.Tensor, block_type: BlockType) -> torch.Tensor:
    if block_type.name in WITHOUT_ORACLE:
        return torch.from_numpy(raw.numpy().view(WITHOUT_ORACLE[block_type.name]).astype(np.float32))
    with warnings.catch_warnings():  # numpy warns where infinite scales meet zeros
        warnings.simplefilter("ignore", RuntimeWarning)
        return torch.from_numpy(oracle(raw.numpy(), gguf.GGMLQuantizationType(block_type.type_id)).copy())


def assert_same_bits(values: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal down to the sign of zero; what stands in a NaN's other bits does not matter."""
    assert values.shape == expected.shape
    assert values.dtype == expected.dtype == torch.float32
    is_nan = expected.isnan()
    assert torch.equal(values.isnan(), is_nan)
    assert torch.equal(values.view(torch.int32)[~is_nan], expected.view(torch.int32)[~is_nan])


def test_every_type_of_the_package_is_decoded_or_refused_by_name() -> None:
    decodable = {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, *quants._type_traits}
    assert decodable <= {gguf.GGMLQuantizationType(type_id) for type_id in BLOCK_TYPES}
    assert {kind.value for kind in gguf.GGMLQuantizationType} == {*BLOCK_TYPES, *UNSUPPORTED_TYPE_NAMES}


def test_type_table_agrees_with_the_format() -> None:
    for type_id, block_type in BLOCK_TYPES.items():
        kind = gguf.GGMLQuantizationType(type_id)
        assert (block_type.type_id, block_type.name) == (type_id, kind.name)
        assert (block_type.block_elements, block_type.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    for type_id, name in UNSUPPORTED_TYPE_NAMES.items():
        assert gguf.GGMLQuantizationType(type_id).name == name
        assert type_id not in BLOCK_TYPES


@ALL_TYPES
@pytest.mark.parametrize(("num_rows", "blocks_per_row"), [(1, 1), (17, 3), (129, 2)])
def test_dequantize_equals_reference_bit_for_bit(block_type: BlockType, num_rows: int, blocks_per_row: int) -> None:
    raw = random_rows(block_type, num_rows, blocks_per_row, seed=num_rows)
    assert_same_bits(dequantize(raw, block_type, torch.float32), oracle_values(raw, block_type))


@PACKED_TYPES
def test_dequantize_equals_reference_for_any_bytes(block_type: BlockType) -> None:
    """Scales that are infinite, not a number, subnormal or negative zero included."""
    blocks = np.random.default_rng(11).integers(0, 256, (600, block_type.block_bytes), dtype=np.uint8)
    special = np.array([0x7C00, 0xFC00, 0x7E00, 0x0001, 0x8000, 0x0000], np.uint16).view(np.uint8).reshape(-1, 2)
    for field, start in enumerate(HALF_FIELDS[block_type.name]):
        blocks[: len(special), start : start + 2] = np.roll(special, 3 * field, axis=0)
    blocks[100], blocks[101] = 0, 255
    raw = torch.from_numpy(blocks)
    expected = oracle_values(raw, block_type)
    if HALF_FIELDS[block_type.name]:
        assert expected.isnan().any()
        assert expected.isinf().any()
    assert_same_bits(dequantize(raw, block_type, torch.float32), expected)


@PACKED_TYPES
def test_dequantize_reads_every_byte_of_a_block(block_type: BlockType) -> None:
    """Changing any byte changes the values, as it does for the reference."""
    raw = random_rows(block_type, 1, 1, seed=23)
    before = dequantize(raw, block_type, torch.float32)
    for position in range(block_type.block_bytes):
        changed = raw.clone()
        changed[0, position] ^= 0x35
        values = dequantize(changed, block_type, torch.float32)
        expected = oracle_values(changed, block_type)
        assert torch.equal(values, before) == torch.equal(expected, before), position
        assert_same_bits(values, expected)


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_dequantize_equals_reference_for_every_8_bit_scale(name: str) -> None:
    block_type = next(block_type for block_type in BLOCK_TYPES.values() if block_type.name == name)
    blocks = np.random.default_rng(5).integers(0, 256, (256, block_type.block_bytes), dtype=np.uint8)
    blocks[:, : 4 if name == "NVFP4" else 1] = np.arange(256, dtype=np.uint8)[:, None]
    raw = torch.from_numpy(blocks)
    assert_same_bits(dequantize(raw, block_type, torch.float32), oracle_values(raw, block_type))


@ALL_TYPES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dequantize_to_another_dtype_rounds_the_float32_values(block_type: BlockType, dtype: torch.dtype) -> None:
    raw = random_rows(block_type, 5, 2, seed=7)
    values = dequantize(raw, block_type, dtype)
    assert values.dtype == dtype
    torch.testing.assert_close(values, oracle_values(raw, block_type).to(dtype), rtol=0, atol=0, equal_nan=True)


@ALL_TYPES
def test_dequantize_in_chunks_equals_one_piece(block_type: BlockType, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_rows(block_type, 7, 3, seed=3)
    whole = dequantize(raw, block_type, torch.float32)
    monkeypatch.setattr(gguf_dequant, "_CHUNK_ELEMENTS", 2 * block_type.block_elements)
    assert_same_bits(dequantize(raw, block_type, torch.float32), whole)


@ALL_TYPES
def test_dequantize_owns_its_memory(block_type: BlockType) -> None:
    raw = random_rows(block_type, 2, 1, seed=5)
    values = dequantize(raw, block_type, torch.float32)
    before = values.clone()
    raw.zero_()
    assert_same_bits(values, before)
