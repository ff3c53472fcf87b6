"""Opening a checkpoint: what a path holds is decided by its content, never by its name."""

from __future__ import annotations

from pathlib import Path

from tokenloom.errors import ModelError
from tokenloom.loader.checkpoint_base import Checkpoint
from tokenloom.loader.gguf import GGUF_MAGIC
from tokenloom.loader.gguf_checkpoint import GGUFCheckpoint
from tokenloom.loader.hf_checkpoint import INDEX_FILE, SINGLE_FILE, HFCheckpoint

__all__ = ["Checkpoint", "GGUFCheckpoint", "HFCheckpoint", "open_checkpoint"]

_LFS_POINTER = b"version https://git-lfs"
_ZIP_OR_PICKLE = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04")


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a GGUF file, a folder that holds exactly one, or a Hugging Face folder.

    A folder with config.json and safetensors files is a Hugging Face one even if .gguf files lie beside them: those are
    opened by their own path.

    Raises:
        ModelError: the path holds none of these, more than one candidate, or a model that is damaged or not supported.
    """
    if path.is_file():
        _check_magic(path)
        return GGUFCheckpoint(path)
    if not path.is_dir():
        raise ModelError(f"{path} does not exist; a model is a .gguf file or a folder")
    has_config = (path / "config.json").is_file()
    if has_config and any((path / name).exists() for name in (SINGLE_FILE, INDEX_FILE)):
        return HFCheckpoint(path)
    gguf_files = sorted(path.glob("*.gguf"))
    if len(gguf_files) == 1:
        return GGUFCheckpoint(gguf_files[0])
    if gguf_files:
        listed = "\n".join(f"  {file}" for file in gguf_files)
        raise ModelError(f"{path} holds {len(gguf_files)} GGUF files; name one of them:\n{listed}")
    if has_config:
        return HFCheckpoint(path)  # which says what is wrong with the weights
    raise ModelError(f"{path} holds no model: neither a .gguf file nor a config.json with {SINGLE_FILE}")


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(_LFS_POINTER))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    if start.startswith(GGUF_MAGIC):
        return
    if start.startswith(_LFS_POINTER):
        raise ModelError(f"{path} is a Git LFS pointer, not the file itself; run 'git lfs pull' in its repository")
    if path.suffix == ".safetensors" or path.name == "config.json":
        raise ModelError(f"{path} is one file of a model folder; name the folder {path.parent} instead")
    if start.startswith(_ZIP_OR_PICKLE):
        raise ModelError(f"{path} is a pickled file; those can run code and are not read. Convert it to safetensors")
    raise ModelError(f"{path} is not a GGUF file: it starts with {start[:4]!r}, expected {GGUF_MAGIC!r}")
