"""Which folder an export may write to, and how a finished one takes its place: nothing but a model is ever replaced."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

from tokenloom.errors import ModelError
from tokenloom.json_file import read_json
from tokenloom.loader.export_tokenizer import TOKENIZER_FILES
from tokenloom.loader.weight_index import WEIGHT_FILES

__all__ = ["check_source", "check_target", "put_in_place"]

_CONFIG = "config.json"
_KNOWN_FILES = frozenset({_CONFIG, "generation_config.json", "README.md", *WEIGHT_FILES, *TOKENIZER_FILES})
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors|pytorch_model-\d+-of-\d+\.bin")

_log = logging.getLogger(__name__)


def check_source(source: Path, target: Path) -> None:
    """Raises ModelError if the model that is to be exported lies in `target`, which no option makes right."""
    if source.resolve().is_relative_to(target.resolve()):
        raise ModelError(f"{target} holds the model that is to be exported; choose another folder")


def check_target(target: Path, *, is_replacing: bool) -> None:
    """Raises ModelError if nothing may be written to `target`; before anything is loaded."""
    if target.exists() and not target.is_dir():
        raise ModelError(f"{target} is a file; name a folder")
    if not target.parent.is_dir():
        raise ModelError(f"{target}: the folder {target.parent} does not exist; make it first")
    if not target.is_dir() or not any(target.iterdir()):
        return
    problem = _why_no_model(target)
    if problem is not None:
        raise ModelError(
            f"{target} is not empty and holds no model that could be replaced: {problem}; choose another folder"
        )
    if not is_replacing:
        raise ModelError(f"{target} holds a model; choose another folder, or replace the model in it with --force")


def _why_no_model(folder: Path) -> str | None:
    """What tells that a folder is not a model and nothing else; None where it is one."""
    foreign = next((entry for entry in sorted(folder.iterdir()) if not _is_of_model(entry)), None)
    if foreign is not None:
        return f"{foreign.name!r} is no file of a model's folder"
    if not (folder / _CONFIG).exists():
        return f"it has no {_CONFIG}"
    try:
        model_type = read_json(folder / _CONFIG).get("model_type")
    except ModelError as error:
        return str(error)
    if not isinstance(model_type, str):
        return f"its {_CONFIG} has no 'model_type', so it describes no model"
    if not any(_SHARD.fullmatch(entry.name) or entry.name in WEIGHT_FILES for entry in folder.iterdir()):
        return "it has no weights"
    return None


def _is_of_model(entry: Path) -> bool:
    return entry.is_file() and (entry.name in _KNOWN_FILES or _SHARD.fullmatch(entry.name) is not None)


def put_in_place(folder: Path, target: Path, old: Path, *, is_replacing: bool) -> None:
    """Makes `folder` be `target`. What was there is deleted only once the new one is in place.

    Args:
        folder: what was written; on the same file system.
        target: absent, empty, or the model to replace; checked again, as writing takes long.
        old: where the replaced folder lies meanwhile. Not a temporary place that is cleaned up in any case: if it
            cannot be moved back, it is the only copy.

    Raises:
        ModelError: `target` has become something that may not be replaced.
        OSError: a folder cannot be moved; `target` is as it was, or, as the message says, lies in `old`.
    """
    check_target(target, is_replacing=is_replacing)
    try:
        if target.exists():
            target.rename(old)
        folder.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            _move_back(old, target)
        raise
    finally:
        if target.exists() and old.exists():
            _delete(old)


def _move_back(old: Path, target: Path) -> None:
    try:
        old.rename(target)
    except OSError as error:
        raise OSError(f"its former content lies in {old}, which cannot be moved back: {error}") from error


def _delete(old: Path) -> None:
    try:
        shutil.rmtree(old)
    except OSError as error:
        _log.warning("the model that was replaced could not be deleted, and lies in %s: %s", old, error)
