"""Models from the Hugging Face hub: `hf:org/name`, `hf:org/name@revision`, `hf:org/name#file.gguf`.

The library of the hub fetches, resumes and caches; here is decided what to fetch, and said what went wrong.
"""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from tokenloom.errors import ModelError
from tokenloom.loader.hub_cache import check_digest, files_in, find_snapshot, hub_cache_dir
from tokenloom.loader.hub_files import needed_files
from tokenloom.loader.offline import offline_reason, refuse_offline
from tokenloom.loader.weight_index import read_index

__all__ = ["HubFetcher", "HubSpec"]

_SPEC = re.compile(r"(?P<repo>\w[\w.-]*(?:/\w[\w.-]*)?)(?:@(?P<revision>[^#@\s\\]+))?(?:#(?P<file>[^\\]+))?", re.ASCII)
_CANNOT_ANSWER = 500  # status codes from here on: the hub itself has failed

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HubSpec:
    """A model repository, and possibly a revision and one file of it."""

    repo: str
    revision: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubSpec:
        """From `org/name@revision#file`. Raises ModelError if it has another form."""
        match = _SPEC.fullmatch(text)
        # Revision and file become parts of paths in the cache.
        words = [] if match is None else [match["revision"] or "main", match["file"] or "file"]
        if match is None or any(part in ("", ".", "..") for word in words for part in word.split("/")):
            raise ModelError(
                f"'hf:{text}' is not of the form hf:org/name, with @revision or #file.gguf behind it where needed"
            )
        if match["file"] is not None and not match["file"].endswith(".gguf"):
            raise ModelError(f"'hf:{text}' names the file {match['file']!r}; only a .gguf file is a model of its own")
        return cls(match["repo"], match["revision"], match["file"])

    @property
    def repository(self) -> str:
        """The source without its file."""
        return f"hf:{self.repo}" + (f"@{self.revision}" if self.revision else "")

    def __str__(self) -> str:
        return self.repository + (f"#{self.file}" if self.file else "")


@final
class HubFetcher:
    """Finds a model in Hugging Face's cache, and fetches what it lacks.

    Args:
        progress: show downloads on stderr.
        cache_dir: the cache; that of the Hugging Face library by default.
        endpoint: address of the hub; what the library takes by default (HF_ENDPOINT).
    """

    def __init__(self, *, progress: bool = True, cache_dir: Path | None = None, endpoint: str | None = None) -> None:
        self._progress = progress
        self._cache_dir = hub_cache_dir() if cache_dir is None else cache_dir
        self._endpoint = endpoint

    def fetch(self, spec: HubSpec, *, verify: bool = False) -> Path:
        """The folder or .gguf file of a model.

        A hub that cannot be reached leaves what is cached, with a warning; offline mode never asks it.

        Args:
            verify: compare every file with its digest.

        Raises:
            ModelError: there is no such model, it may not be read, it cannot be fetched, or it is damaged.
        """
        if offline_reason() is not None:
            folder, files = self._cached(spec)
        else:
            folder, files = self._fetched(spec)
        if verify:
            self._verify(spec, folder, files)
        return folder / files[0] if files[0].endswith(".gguf") else folder

    def _cached(self, spec: HubSpec) -> tuple[Path, list[str]]:
        folder = find_snapshot(self._cache_dir, spec.repo, spec.revision)
        if folder is None:
            refuse_offline(str(spec), self._cache_dir)
            raise ModelError(f"{spec} is not in the cache {self._cache_dir} either")
        try:
            there = files_in(folder)
            files = needed_files(spec.repository, there, spec.file, lambda name: read_index(folder / name))
            missing = next((file for file in files if file not in there), None)
        except ModelError as error:
            raise ModelError(f"{spec} is cached in part only; fetch it again with the network on: {error}") from error
        if missing is not None:
            raise ModelError(f"{spec} is cached in part only, without {missing}; fetch it again with the network on")
        return folder, files

    def _fetched(self, spec: HubSpec) -> tuple[Path, list[str]]:
        try:
            with _progress_bars(self._progress):
                return self._download(spec)
        except ModelError:
            raise
        except Exception as error:  # network errors of the library share no base of their own
            refusal = _refusal(spec, error, self._cache_dir)
            if refusal is not None:
                raise refusal from error
            unreachable = error
        return self._cached_instead(spec, unreachable)

    def _cached_instead(self, spec: HubSpec, error: Exception) -> tuple[Path, list[str]]:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        try:
            found = self._cached(spec)
        except ModelError as lacking:
            raise ModelError(
                f"cannot fetch {spec}: {reason}\n{lacking}. Check the network, and HF_ENDPOINT if you set it"
            ) from error
        _log.warning("cannot ask the hub for %s (%s); what was fetched before is used: %s", spec, reason, found[0])
        return found

    def _download(self, spec: HubSpec) -> tuple[Path, list[str]]:
        # Imported here because other sources do without it, and it takes a while.
        from huggingface_hub import HfApi, hf_hub_download, snapshot_download

        info = HfApi(endpoint=self._endpoint).model_info(spec.repo, revision=spec.revision)
        listed = [sibling.rfilename for sibling in info.siblings or ()]

        def read_remote_index(name: str) -> dict[str, str]:
            return read_index(
                Path(
                    hf_hub_download(
                        spec.repo, name, revision=info.sha, cache_dir=self._cache_dir, endpoint=self._endpoint
                    )
                )
            )

        files = needed_files(spec.repository, listed, spec.file, read_remote_index)
        absent = next((file for file in files if file not in listed), None)
        if absent is not None:
            raise ModelError(f"{spec} is incomplete on the hub: its index names {absent}, which is not there")
        folder = snapshot_download(
            spec.repo,
            revision=spec.revision,
            cache_dir=self._cache_dir,
            endpoint=self._endpoint,
            allow_patterns=[glob.escape(file) for file in files],
        )
        return Path(folder), files

    def _verify(self, spec: HubSpec, folder: Path, files: list[str]) -> None:
        from tokenloom.loader.progress import spinner

        with spinner(f"Checking {spec}", enabled=self._progress):
            unchecked = [file for file in files if not check_digest(folder / file)]
        if unchecked:
            _log.warning("%s: %s cannot be checked, because the cache keeps no digest of it", spec, unchecked[0])


def _refusal(spec: HubSpec, error: Exception, cache_dir: Path) -> ModelError | None:
    """What the hub or the disk has against a model; None where the hub could not be asked."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return ModelError(
            f"{spec} is gated: ask for access on its page, then log in with 'hf auth login' or set HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelError(f"hf:{spec.repo} has no revision {spec.revision or 'main'!r}")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelError(
            f"there is no model hf:{spec.repo}, or it is private; check the name (hf:org/name), and log in with "
            "'hf auth login' or HF_TOKEN if it is yours"
        )
    if isinstance(error, errors.HFValidationError):
        return ModelError(f"hf:{spec.repo} is no name that the hub allows, as in hf:org/name: {error}")
    if isinstance(error, errors.HfHubHTTPError):
        return ModelError(f"the hub refuses {spec}: {error}") if error.response.status_code < _CANNOT_ANSWER else None
    # The library's own errors may be OSErrors, without a number; those with one come from the disk.
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError | TimeoutError):
        return ModelError(f"cannot store {spec} in {cache_dir}: {error}")
    return None


@contextmanager
def _progress_bars(shown: bool) -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
