"""What is in the caches: the models, where each came from, and how to remove one. Both caches have this face."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenloom.errors import ModelError
from tokenloom.json_file import read_json
from tokenloom.loader.weight_index import WEIGHT_FILES

__all__ = ["CachedModel", "ModelCache", "check_inside", "describe_folder", "describe_gguf"]


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One model in a cache.

    Attributes:
        source: what `model=` takes to load just this one.
        path: the folder or .gguf file.
        num_bytes: what it takes on disk; files that revisions share count for each.
        form: the format, "safetensors" or "gguf Q4_1"; "incomplete" or "damaged" where it cannot be used.
        architecture: as its file calls it, e.g. "llama"; empty if unknown.
        last_used_s: when it was last read, seconds since 1970, as far as the file system keeps that.
    """

    source: str
    path: Path
    num_bytes: int
    form: str
    architecture: str
    last_used_s: float


class ModelCache(ABC):
    """A folder with fetched models."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The cache; it need not exist."""

    @abstractmethod
    def models(self) -> list[CachedModel]:
        """Every model in it, by source. Never writes."""

    @abstractmethod
    def problems(self) -> list[str]:
        """What in the cache cannot be read, in words."""

    @abstractmethod
    def remove(self, model: CachedModel) -> None:
        """Deletes one of `models()`, and nothing outside the cache.

        Raises:
            ModelError: it cannot be deleted, or lies outside the cache.
        """


def describe_folder(folder: Path) -> tuple[str, str]:
    """(form, architecture) of a Hugging Face folder."""
    weights = next((name for name in WEIGHT_FILES if (folder / name).exists()), None)
    try:
        values = read_json(folder / "config.json")
    except ModelError:
        return "incomplete", ""
    model_type: Any = values.get("model_type")
    form = "incomplete" if weights is None else "safetensors" if "safetensors" in weights else "pickle"
    return form, model_type if isinstance(model_type, str) else ""


def describe_gguf(path: Path) -> tuple[str, str]:
    """(form, architecture) of a GGUF file: the block type of most of its bytes, and `general.architecture`."""
    from tokenloom.loader.gguf import GGUFFile  # imports torch, which a cache without such files does not need

    try:
        file = GGUFFile(path)
    except ModelError:
        return "damaged", ""
    bytes_by_type: dict[str, int] = {}
    for info in file.tensors.values():
        bytes_by_type[info.block_type.name] = bytes_by_type.get(info.block_type.name, 0) + info.num_bytes
    architecture = file.metadata.get("general.architecture")
    file.close()
    main = max(bytes_by_type, key=lambda name: bytes_by_type[name], default="")
    return f"gguf {main}".strip(), architecture if isinstance(architecture, str) else ""


def check_inside(path: Path, cache: Path) -> None:
    """Raises ModelError if `path` leads out of `cache`, so that nothing else can be deleted through a link."""
    if not path.resolve().is_relative_to(cache.resolve()):
        raise ModelError(f"{path} leads out of the cache {cache} to {path.resolve()}; it is not deleted")
