"""A GGUF file: its metadata, its tensor table, and each tensor's raw bytes straight from the memory map.

Written for start-up time (two arrays of fifty thousand strings parse in hundredths of a second) and for hostile input:
every count, length and offset is checked against the file before anything is allocated or followed.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from tokenloom.errors import ModelError, did_you_mean
from tokenloom.loader.gguf_dequant import BLOCK_TYPES, UNSUPPORTED_TYPE_NAMES, BlockType
from tokenloom.loader.gguf_reader import GGUFReader

__all__ = ["GGUF_MAGIC", "GGUFFile", "GGUFTensorInfo"]

GGUF_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4
_MIN_METADATA_BYTES = 13  # a key of length 0, its type, one byte of value
_MIN_TENSOR_BYTES = 32  # a name of length 0, one dimension, type, offset


@dataclass(frozen=True, slots=True)
class GGUFTensorInfo:
    """One row of the tensor table.

    Attributes:
        shape: in torch's order, [out, in]; the file stores it reversed.
        offset: first byte, counted from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    block_type: BlockType
    offset: int
    num_bytes: int

    @property
    def is_in_blocks(self) -> bool:
        """Whether elements share something, or each is a number by itself."""
        return self.block_type.block_elements > 1

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.block_type.block_elements * self.block_type.block_bytes


@final
class GGUFFile:
    """An open GGUF file. Raises ModelError, naming file and key or tensor, for anything that cannot be trusted.

    Attributes:
        path: the file.
        version: format version, 2 or 3.
        metadata: every key with its value; arrays are lists.
        tensors: the tensor table by name, in file order.
        data_start: where tensor data begins; everything before is the header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = _map_file(path)
        reader = GGUFReader(self._map, path)
        num_tensors, num_metadata, self.version = _read_preamble(reader)
        self.metadata: Mapping[str, Any] = _read_metadata(reader, num_metadata)
        alignment = _alignment(self.metadata, path)
        table = [_read_tensor_info(reader) for _ in range(num_tensors)]
        self.data_start = -(-reader.position // alignment) * alignment
        self.tensors: Mapping[str, GGUFTensorInfo] = _check_table(table, self.data_start, alignment, reader.size, path)

    def raw(self, name: str) -> torch.Tensor:
        """A tensor's bytes: uint8 [rows, row_bytes], a view of the map. Writing to it never reaches the file."""
        assert self._map is not None, f"{self.path} is closed"
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path} has no tensor {name!r}.{did_you_mean(name, self.tensors)}")
        flat = torch.frombuffer(self._map, dtype=torch.uint8, count=info.num_bytes, offset=info.offset)
        return flat.view(-1, info.row_bytes)

    def header(self) -> bytes:
        """Every byte before the tensor data."""
        assert self._map is not None, f"{self.path} is closed"
        return self._map[: self.data_start]

    def close(self) -> None:
        """Lets go of the map, which ends when the last tensor that views it does."""
        self._map = None


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
                raise ModelError(f"{path} is not a GGUF file: it does not start with the bytes 'GGUF'")
            # Copy-on-write: torch wants writable memory, and the file itself can never change through it.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error


def _read_preamble(reader: GGUFReader) -> tuple[int, int, int]:
    reader.where = "the file's preamble"
    reader.skip(len(GGUF_MAGIC))
    version = reader.u32()
    if version not in _VERSIONS:
        swapped = struct.unpack("<I", struct.pack(">I", version))[0]
        hint = (
            "it is a big-endian file; only little-endian ones are read" if swapped in _VERSIONS else "convert it anew"
        )
        raise ModelError(f"{reader.path} has GGUF version {version}; versions 2 and 3 are supported: {hint}")
    num_tensors, num_metadata = reader.u64(), reader.u64()
    reader.check_count(num_metadata, _MIN_METADATA_BYTES, "metadata keys")
    reader.check_count(num_tensors, _MIN_TENSOR_BYTES, "tensors")
    return num_tensors, num_metadata, version


def _read_metadata(reader: GGUFReader, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        reader.where = f"the name of metadata key {index}"
        key = reader.name()
        reader.where = f"metadata key {key!r}"
        if key in metadata:
            raise ModelError(f"{reader.path} is damaged: metadata key {key!r} appears twice")
        metadata[key] = reader.value(reader.u32())
    return metadata


def _alignment(metadata: Mapping[str, Any], path: Path) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or isinstance(alignment, bool) or alignment < 8 or alignment % 8 != 0:
        raise ModelError(
            f"{path} is damaged: metadata key 'general.alignment' must be a multiple of 8, got {alignment!r}"
        )
    return alignment


def _read_tensor_info(reader: GGUFReader) -> GGUFTensorInfo:
    reader.where = "the name of a tensor"
    name = reader.name()
    reader.where = f"the table entry of tensor {name!r}"
    num_dims = reader.u32()
    if not 1 <= num_dims <= _MAX_DIMS:
        raise ModelError(f"{reader.path} is damaged: tensor {name!r} has {num_dims} dimensions; 1 to {_MAX_DIMS} exist")
    shape = tuple(reversed([reader.u64() for _ in range(num_dims)]))
    type_id, offset = reader.u32(), reader.u64()
    block_type = BLOCK_TYPES.get(type_id)
    if block_type is None:
        known = ", ".join(block_type.name for block_type in BLOCK_TYPES.values())
        type_name = UNSUPPORTED_TYPE_NAMES.get(type_id, "unknown")
        raise ModelError(
            f"{reader.path}: tensor {name!r} has type {type_name} (number {type_id}), which is not supported; "
            f"supported are {known}. Use another quantization of this model."
        )
    if min(shape) < 1 or shape[-1] % block_type.block_elements != 0:
        raise ModelError(
            f"{reader.path} is damaged: tensor {name!r} of type {block_type.name} has shape {list(shape)}; every "
            f"dimension must be at least 1 and the last one a multiple of {block_type.block_elements}"
        )
    num_bytes = math.prod(shape) // block_type.block_elements * block_type.block_bytes
    return GGUFTensorInfo(name, shape, block_type, offset, num_bytes)


def _check_table(
    table: list[GGUFTensorInfo], data_start: int, alignment: int, file_bytes: int, path: Path
) -> dict[str, GGUFTensorInfo]:
    """Turns relative offsets into absolute ones and checks them against the file and against each other."""
    tensors: dict[str, GGUFTensorInfo] = {}
    for info in table:
        if info.name in tensors:
            raise ModelError(f"{path} is damaged: tensor {info.name!r} appears twice")
        if info.offset % alignment != 0:
            raise ModelError(
                f"{path} is damaged: tensor {info.name!r} starts at offset {info.offset}, "
                f"which is not a multiple of the alignment {alignment}"
            )
        start = data_start + info.offset
        if start + info.num_bytes > file_bytes:
            raise ModelError(
                f"{path} is truncated or damaged: tensor {info.name!r} needs bytes {start} to "
                f"{start + info.num_bytes}, but the file has {file_bytes}; fetch it again"
            )
        tensors[info.name] = GGUFTensorInfo(info.name, info.shape, info.block_type, start, info.num_bytes)
    by_offset = sorted(tensors.values(), key=lambda info: info.offset)
    for before, after in itertools.pairwise(by_offset):
        if before.offset + before.num_bytes > after.offset:
            raise ModelError(f"{path} is damaged: tensors {before.name!r} and {after.name!r} overlap")
    return tensors
