"""A pickled state dict (`pytorch_model.bin`) as a `WeightFile`.

A pickle can name any code to run. Only torch's restricted reader is used: it builds tensors and plain containers, and
stops at the first other name, before anything runs.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import final

import torch

from tokenloom.errors import ModelError
from tokenloom.loader.weight_file import WeightFile, refuse_lfs_pointer

__all__ = ["PickledFile"]

_ZIP = b"PK\x03\x04"
_REFUSED_NAME = re.compile(r"GLOBAL\s+([\w.]+)")
_TORCH_ADVICE = re.compile(
    r"(?s)Weights only load failed\..*(?:WeightsUnpickler error:|trusted source\.)|Check the documentation.*"
)
"""What torch says around the reason: how to read the file all the same, which would run its code."""


@final
class PickledFile(WeightFile):
    """Both of torch's formats: zip archives, which are mapped into memory, and older plain pickles, which are read.

    Raises:
        ModelError: the file is missing or damaged, holds code, or is no state dict.
    """

    def __init__(self, path: Path) -> None:
        refuse_lfs_pointer(path)
        self._path = path
        self._tensors = _checked(_read(path), path)

    @property
    def path(self) -> Path:
        return self._path

    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def dtype_name(self, name: str) -> str:
        return str(self._tensors[name].dtype).removeprefix("torch.")

    def view(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def header(self) -> bytes:
        return b""

    def close(self) -> None:
        self._tensors = {}


def _read(path: Path) -> object:
    with path.open("rb") as file:
        is_zip = file.read(len(_ZIP)) == _ZIP
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        refused = _REFUSED_NAME.search(str(error))
        if refused is None:
            raise _damaged(path, error) from error
        raise ModelError(
            f"{path} is a pickle that names code, {refused[1]!r}, not only tensors; reading it could run that code, so "
            "it is refused. Convert it to safetensors where you trust it"
        ) from error
    except Exception as error:  # a damaged pickle can make the reader raise anything
        if str(error).startswith("Cannot use"):  # TorchScript, and the tar files of the first releases
            raise ModelError(
                f"{path} is in a form that can only be read by running code from it, so it is refused. "
                "Convert it to safetensors where you trust it"
            ) from error
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ModelError:
    lines = _TORCH_ADVICE.sub("", str(error)).strip().splitlines()
    return ModelError(f"{path} is truncated or damaged: {lines[0] if lines else type(error).__name__}; fetch it again")


def _checked(content: object, path: Path) -> dict[str, torch.Tensor]:
    if not isinstance(content, Mapping):
        raise ModelError(f"{path} holds a {type(content).__name__}; expected a state dict, names to tensors")
    tensors: dict[str, torch.Tensor] = {}
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ModelError(
                f"{path}: entry {name!r} is a {type(value).__name__}; expected a state dict, names to tensors. A "
                "training checkpoint holds more than that: save model.state_dict() alone, or convert it to safetensors"
            )
        if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
            raise ModelError(f"{path}: tensor {name!r} is no plain dense tensor ({value.layout}, {value.dtype})")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ModelError(f"{path}: tensor {name!r} of shape {list(value.shape)} is larger than its data")
        tensors[name] = value.detach()
    return tensors
