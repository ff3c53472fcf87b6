"""A GGUF model as one thing, whether it is one file or split over several (`name-00001-of-00003.gguf`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError, did_you_mean
from tokenloom.loader.gguf import GGUFFile, GGUFTensorInfo

__all__ = ["GGUFParts", "is_later_part"]

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_PARTS = 99999  # what the name has digits for


def is_later_part(path: Path) -> bool:
    """Whether the name is that of a part that is not the first; such a file is opened with its first part."""
    match = _PART_NAME.fullmatch(path.name)
    return match is not None and int(match["number"]) > 1


@final
class GGUFParts:
    """The first file, which has the metadata, and all others, in which only tensors count.

    Raises ModelError if a part is missing, belongs to another set, or repeats a tensor.

    Attributes:
        path: the file that was opened; the first part.
        metadata: of the first part.
        tensors: the tables of all parts, in order.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        first = GGUFFile(path)
        self.metadata: Mapping[str, Any] = first.metadata
        self._parts = (first, *_later_parts(first))
        self._part_of: dict[str, GGUFFile] = {}
        for part in self._parts:
            for name in part.tensors:
                other = self._part_of.setdefault(name, part)
                if other is not part:
                    raise ModelError(f"{part.path} repeats tensor {name!r}, which {other.path} also holds")
        self.tensors: Mapping[str, GGUFTensorInfo] = {
            name: info for part in self._parts for name, info in part.tensors.items()
        }
        _check_num_tensors(first, len(self.tensors))

    def raw(self, name: str) -> torch.Tensor:
        """A tensor's bytes; see `GGUFFile.raw`."""
        return self._part(name).raw(name)

    def file_of(self, name: str) -> Path:
        return self._part(name).path

    def headers(self) -> list[tuple[Path, bytes]]:
        """Every file with all that it has before its tensor data."""
        return [(part.path, part.header()) for part in self._parts]

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def _part(self, name: str) -> GGUFFile:
        part = self._part_of.get(name)
        if part is None:
            raise ModelError(f"{self.path} has no tensor {name!r}.{did_you_mean(name, self.tensors)}")
        return part


def _later_parts(first: GGUFFile) -> list[GGUFFile]:
    fields = Fields(first.metadata, first.path)
    count = fields.integer("split.count", 1, minimum=0, maximum=_MAX_PARTS)
    if count <= 1:
        return []
    match = _PART_NAME.fullmatch(first.path.name)
    if match is None or int(match["count"]) != count:
        raise ModelError(
            f"{first.path} is one of {count} parts of a split GGUF model; the others are found by its name, which must "
            f"end in '-00001-of-{count:05}.gguf'. Rename it"
        )
    paths = [first.path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    if fields.integer("split.no", 0, minimum=0) != 0 or int(match["number"]) != 1:
        raise ModelError(f"{first.path} is a later part of a split GGUF model; open its first part, {paths[0].name}")
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ModelError(
            f"{first.path} is the first of {count} parts, of which {len(missing)} are missing beside it, first "
            f"{missing[0]}; fetch them too"
        )
    return [_open_part(path, number, count) for number, path in enumerate(paths[1:], start=1)]


def _open_part(path: Path, number: int, count: int) -> GGUFFile:
    part = GGUFFile(path)
    fields = Fields(part.metadata, path)
    stated = fields.integer("split.no", minimum=0), fields.integer("split.count", minimum=0)
    if stated != (number, count):
        raise ModelError(
            f"{path} says that it is part {stated[0] + 1} of {stated[1]}, but its name says {number + 1} of {count}; "
            "fetch it again"
        )
    return part


def _check_num_tensors(first: GGUFFile, num_tensors: int) -> None:
    expected = Fields(first.metadata, first.path).integer("split.tensors.count", num_tensors, minimum=0)
    if expected != num_tensors:
        raise ModelError(
            f"{first.path} announces {expected} tensors in all parts together, which hold {num_tensors}: the parts "
            "belong to different models or are damaged; fetch them again"
        )
