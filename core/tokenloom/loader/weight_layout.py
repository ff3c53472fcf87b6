"""Opens the weight files of a Hugging Face folder: which tensor is in which of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from tokenloom.errors import ModelError
from tokenloom.loader.pickled_file import PickledFile
from tokenloom.loader.weight_file import SafetensorsFile, WeightFile
from tokenloom.loader.weight_index import WEIGHT_FILES, read_index

__all__ = ["open_weights"]

_OTHER_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx")


def open_weights(folder: Path) -> dict[str, WeightFile]:
    """Opens the weight files; returns which of them holds each tensor, in the order of the files.

    Tensors that a shard holds and the index leaves out count as well, as they do in Transformers.

    Raises:
        ModelError: there are none, a file is missing or damaged, the index and the files contradict each other, or two
            files hold a tensor of the same name.
    """
    chosen = next((name for name in WEIGHT_FILES if (folder / name).exists()), None)
    if chosen is None:
        raise ModelError(_without_weights(folder))
    if not chosen.endswith(".json"):
        file = _open(folder / chosen)
        return dict.fromkeys(file.names(), file)
    index = read_index(folder / chosen)
    missing = [shard for shard in dict.fromkeys(index.values()) if not (folder / shard).is_file()]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ModelError(f"{folder / missing[0]} is missing{more}: {chosen} names it as a shard; fetch the model again")
    files = {shard: _open(folder / shard) for shard in dict.fromkeys(index.values())}
    holders = _holders(files)
    for name, shard in index.items():
        if holders.get(name) is not files[shard]:
            lacking = [other for other, place in index.items() if place == shard and holders.get(other) != files[shard]]
            raise ModelError(
                f"{folder / shard} lacks {len(lacking)} tensors that {chosen} places there, first {name!r}"
            )
    return holders


def _open(path: Path) -> WeightFile:
    return SafetensorsFile(path) if path.suffix == ".safetensors" else PickledFile(path)


def _holders(files: Mapping[str, WeightFile]) -> dict[str, WeightFile]:
    holders: dict[str, WeightFile] = {}
    for file in files.values():
        for name in file.names():
            other = holders.setdefault(name, file)
            if other is not file:
                raise ModelError(f"{other.path} and {file.path} both hold a tensor {name!r}; one of them is not needed")
    return holders


def _without_weights(folder: Path) -> str:
    found = sorted(file.name for file in folder.iterdir() if PurePosixPath(file.name).suffix in _OTHER_WEIGHTS)
    listed = f"; it holds {', '.join(found[:4])}{', ...' if len(found) > 4 else ''}" if found else ""
    hint = ""
    if any("-of-" in name for name in found):
        hint = ". Shards need their index, which says what each of them holds"
    elif found:
        hint = ". Convert the weights to safetensors"
    return f"{folder} has a config.json, but no weights: none of {', '.join(WEIGHT_FILES)}{listed}{hint}"
