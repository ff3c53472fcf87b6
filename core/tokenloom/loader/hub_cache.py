"""Hugging Face's own cache folder, which is shared with other tools: where a model lies in it, and whether it is whole.

models--org--name/refs/main                 the commit that a branch or tag was at when it was last fetched
models--org--name/snapshots/<commit>/...    links, named as in the repository
models--org--name/blobs/<digest>            what the links lead to: SHA-256 of large files, Git's SHA-1 of small ones
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from tokenloom.errors import ModelError
from tokenloom.loader.weights_digest import file_sha256

__all__ = ["check_digest", "files_in", "find_snapshot", "hub_cache_dir", "repository_folder"]

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_READ_BYTES = 1 << 20


def hub_cache_dir() -> Path:
    """Where the Hugging Face library keeps what it fetches; HF_HOME and HF_HUB_CACHE move it."""
    from huggingface_hub import constants  # imported late: other sources do without it

    return Path(constants.HF_HUB_CACHE)


def repository_folder(cache_dir: Path, repo: str) -> Path:
    """The folder of a model repository in the cache, there or not."""
    return cache_dir / f"models--{repo.replace('/', '--')}"


def find_snapshot(cache_dir: Path, repo: str, revision: str | None) -> Path | None:
    """The folder of a revision (by default the main branch) as it was last fetched, or None. It may be incomplete."""
    folder = repository_folder(cache_dir, repo)
    name = revision or "main"
    reference = folder / "refs" / name
    commit = name if _COMMIT.fullmatch(name) else reference.read_text().strip() if reference.is_file() else None
    if commit is None or not _COMMIT.fullmatch(commit):
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def files_in(snapshot: Path) -> list[str]:
    """The files of a snapshot, relative, with "/" between folders; a link that leads nowhere is none."""
    return sorted(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file())


def check_digest(file: Path) -> bool:
    """Compares a file of a snapshot with the digest that the cache stores it under.

    Returns:
        Whether that was possible: a cache without links keeps no digests.

    Raises:
        ModelError: the content has another digest.
    """
    blob = file.resolve()
    if _SHA256.fullmatch(blob.name):
        found = file_sha256(blob)
    elif _COMMIT.fullmatch(blob.name):
        found = _git_sha1(blob)
    else:
        return False
    if found != blob.name:
        raise ModelError(
            f"{file} is damaged: expected the digest {blob.name}, found {found}; delete {blob} and fetch it again"
        )
    return True


def _git_sha1(path: Path) -> str:
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
