"""The models in Hugging Face's cache, whoever fetched them: each revision, and each .gguf file, as a source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, final

from tokenloom.errors import ModelError
from tokenloom.loader.hub_files import gguf_files, gguf_parts
from tokenloom.loader.model_cache import CachedModel, ModelCache, check_inside, describe_folder, describe_gguf

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRepoInfo, CachedRevisionInfo, HFCacheInfo

__all__ = ["HubModelCache"]


@final
class HubModelCache(ModelCache):
    """Args: folder: the cache, as `hub_cache_dir` gives it. It is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._info = _scan(folder)
        self._revision_of: dict[str, CachedRevisionInfo] = {}
        self._models: list[CachedModel] = []
        for repo in self._info.repos if self._info is not None else ():
            if repo.repo_type == "model":
                for revision in repo.revisions:
                    for model in _models_of(repo, revision):
                        self._models.append(model)
                        self._revision_of[model.source] = revision

    @property
    def folder(self) -> Path:
        return self._folder

    def models(self) -> list[CachedModel]:
        return sorted(self._models, key=lambda model: model.source)

    def problems(self) -> list[str]:
        return [] if self._info is None else [str(warning) for warning in self._info.warnings]

    def remove(self, model: CachedModel) -> None:
        assert self._info is not None, f"{model.source} in an empty cache"
        revision = self._revision_of[model.source]
        others = [source for source, other in self._revision_of.items() if other is revision and source != model.source]
        try:
            if others:
                self._remove_files([model.path.with_name(Path(part).name) for part in gguf_parts(model.path.name)])
                return
            for file in revision.files:
                check_inside(file.blob_path.parent, self._folder)
            check_inside(revision.snapshot_path, self._folder)
            self._info.delete_revisions(revision.commit_hash).execute()
        except OSError as error:
            raise ModelError(f"cannot delete {model.path}: {error}") from error
        if revision.snapshot_path.exists():
            raise ModelError(f"{revision.snapshot_path} could not be deleted; are its files in use or read-only?")

    def _remove_files(self, paths: list[Path]) -> None:
        """Deletes some files of a revision, and their content where no other revision has it."""
        assert self._info is not None
        files = [file for repo in self._info.repos for revision in repo.revisions for file in revision.files]
        kept = {file.blob_path for file in files if file.file_path not in paths}
        for file in files:
            if file.file_path in paths:
                check_inside(file.file_path.parent, self._folder)
                file.file_path.unlink()
                if file.blob_path not in kept:
                    check_inside(file.blob_path.parent, self._folder)
                    file.blob_path.unlink(missing_ok=True)


def _scan(folder: Path) -> HFCacheInfo | None:
    from huggingface_hub import scan_cache_dir  # imported late: it takes a while

    return scan_cache_dir(folder) if folder.is_dir() else None


def _models_of(repo: CachedRepoInfo, revision: CachedRevisionInfo) -> list[CachedModel]:
    source = f"hf:{repo.repo_id}"
    if "main" not in revision.refs:
        source += f"@{min(revision.refs, default=revision.commit_hash)}"
    folder = revision.snapshot_path
    files = {file.file_path.relative_to(folder).as_posix(): file for file in revision.files}
    models = []
    for name in gguf_files(files):
        form, architecture = describe_gguf(folder / name)
        parts = [files[part] for part in gguf_parts(name) if part in files]
        models.append(_model(f"{source}#{name}", folder / name, parts, form, architecture, revision.last_modified))
    form, architecture = describe_folder(folder)
    if form != "incomplete" or not models:
        rest = [file for name, file in files.items() if not name.endswith(".gguf")]
        models.append(_model(source, folder, rest, form, architecture, revision.last_modified))
    return models


def _model(
    source: str, path: Path, files: list[CachedFileInfo], form: str, architecture: str, otherwise_s: float
) -> CachedModel:
    num_bytes = sum({file.blob_path: file.size_on_disk for file in files}.values())
    last_used_s = max((file.blob_last_accessed for file in files), default=otherwise_s)
    return CachedModel(source, path, num_bytes, form, architecture, last_used_s)
