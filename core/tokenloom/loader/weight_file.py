"""One weight file of a Hugging Face folder, whatever its format: safetensors, or a pickled state dict."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, cast, final

import torch
from safetensors import SafetensorError, safe_open

from tokenloom.errors import ModelError

__all__ = ["SafetensorsFile", "WeightFile", "refuse_lfs_pointer"]

_LFS_POINTER = b"version https://git-lfs"
_DTYPE_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


class WeightFile(ABC):
    """An open file of named tensors. Opening reads no more than is needed to know the names."""

    @property
    @abstractmethod
    def path(self) -> Path:
        """The file."""

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of its tensors, in the order of the file."""

    @abstractmethod
    def dtype_name(self, name: str) -> str:
        """What a tensor is stored in, as torch calls it ("bfloat16"), without reading it."""

    @abstractmethod
    def view(self, name: str) -> torch.Tensor:
        """A tensor as it is stored, possibly on the file's memory map: copy what has to stay.

        Raises:
            ModelError: it cannot be read.
        """

    @abstractmethod
    def header(self) -> bytes:
        """What belongs to the file's identity beside its size, time and samples; may be empty."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of the file; nothing else may be called afterwards."""


@final
class SafetensorsFile(WeightFile):
    """Raises ModelError where the file is missing or damaged."""

    def __init__(self, path: Path) -> None:
        refuse_lfs_pointer(path)
        self._path = path
        try:
            self._file = cast(Any, safe_open(path, framework="pt", device="cpu"))
            self._names = tuple(self._file.keys())
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(f"{path} is truncated or damaged: {error}; fetch it again") from error

    @property
    def path(self) -> Path:
        return self._path

    def names(self) -> tuple[str, ...]:
        return self._names

    def dtype_name(self, name: str) -> str:
        code: str = self._file.get_slice(name).get_dtype()
        return _DTYPE_NAMES.get(code, code)

    def view(self, name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._file.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"{self._path}: tensor {name!r} cannot be read: {error}") from error
        return tensor

    def header(self) -> bytes:
        # Its shape was checked when the file was opened.
        with self._path.open("rb") as stream:
            (num_bytes,) = struct.unpack("<Q", stream.read(8))
            return stream.read(num_bytes)

    def close(self) -> None:
        self._file = None


def refuse_lfs_pointer(path: Path) -> None:
    """Raises ModelError if `path` cannot be read, or holds Git LFS's note about a file instead of the file."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_LFS_POINTER))
    except FileNotFoundError as error:
        raise ModelError(f"{path} is missing; fetch the model again") from error
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    if start == _LFS_POINTER:
        raise ModelError(f"{path} is a Git LFS pointer, not the file itself; run 'git lfs pull' in its repository")
