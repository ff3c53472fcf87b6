"""Opening a checkpoint: what a path holds is decided by its content, never by its name."""

from __future__ import annotations

from pathlib import Path

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.errors import ModelError
from tokenloom.loader.gguf import GGUF_MAGIC
from tokenloom.loader.gguf_checkpoint import GGUFCheckpoint
from tokenloom.loader.gguf_parts import is_later_part
from tokenloom.loader.hf_checkpoint import HFCheckpoint
from tokenloom.loader.weight_file import refuse_lfs_pointer
from tokenloom.loader.weight_index import WEIGHT_FILES, has_weights

__all__ = ["Checkpoint", "GGUFCheckpoint", "HFCheckpoint", "open_checkpoint"]

_ZIP_OR_PICKLE = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04")


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a GGUF file, a folder that holds exactly one, or a Hugging Face folder.

    A folder with config.json and weights is a Hugging Face one even if .gguf files lie beside them: those are opened by
    their own path.

    Raises:
        ModelError: the path holds none of these, more than one candidate, or a model that is damaged or not supported.
    """
    if path.is_file():
        _check_magic(path)
        return GGUFCheckpoint(path)
    if not path.is_dir():
        raise ModelError(f"{path} does not exist; a model is a .gguf file or a folder")
    has_config = (path / "config.json").is_file()
    if has_config and has_weights(path):
        return HFCheckpoint(path)
    gguf_files = sorted(file for file in path.glob("*.gguf") if not is_later_part(file))
    if len(gguf_files) == 1:
        _check_magic(gguf_files[0])
        return GGUFCheckpoint(gguf_files[0])
    if gguf_files:
        listed = "\n".join(f"  {file}" for file in gguf_files)
        raise ModelError(f"{path} holds {len(gguf_files)} GGUF files; name one of them:\n{listed}")
    if has_config:
        return HFCheckpoint(path)  # which says what is wrong with the weights
    raise ModelError(f"{path} holds no model: neither a .gguf file nor a config.json with {WEIGHT_FILES[0]}")


def _check_magic(path: Path) -> None:
    refuse_lfs_pointer(path)
    with path.open("rb") as file:
        start = file.read(len(GGUF_MAGIC))
    if start == GGUF_MAGIC:
        return
    is_pickle = start.startswith(_ZIP_OR_PICKLE)
    if path.suffix == ".safetensors" or path.name in ("config.json", *WEIGHT_FILES) or is_pickle:
        raise ModelError(
            f"{path} is {'a pickled file, ' if is_pickle else ''}one file of a model folder; name the folder "
            f"{path.parent} instead"
        )
    raise ModelError(f"{path} is not a GGUF file: it starts with {start!r}, expected {GGUF_MAGIC!r}")
