"""A Hugging Face folder as a `Checkpoint`: config.json with model.safetensors, whole or in shards."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open

from tokenloom.errors import ModelError
from tokenloom.loader.checkpoint_base import Checkpoint
from tokenloom.loader.hf_config import hf_config, read_json
from tokenloom.loader.tokenizer_source import TokenizerSource
from tokenloom.loader.weights_digest import quick_digest
from tokenloom.model_config import ModelConfig

__all__ = ["INDEX_FILE", "SINGLE_FILE", "HFCheckpoint"]

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_EMBEDDINGS = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_RECOMPUTED = ".rotary_emb.inv_freq"  # old files store this buffer; it follows from the config
_FLOAT_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@final
class HFCheckpoint(Checkpoint):
    """Opens the folder and the header of every shard; tensor data is read by `load` only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        values = read_json(path / "config.json")
        files = _tensor_files(path)
        self._shards = {file: _open_shard(file) for file in dict.fromkeys(files.values())}
        _check_index(files, self._shards)
        self._config = hf_config(path, values, self._stored_dtype(files))
        if self._config.tie_word_embeddings:
            files.pop(_HEAD, None)
        self._files = {name: file for name, file in files.items() if not name.endswith(_RECOMPUTED)}
        self._quantization = values.get("quantization_config")
        if self._quantization is not None and not isinstance(self._quantization, dict):
            raise ModelError(f"{path / 'config.json'}: 'quantization_config' must be an object")

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def path(self) -> Path:
        return self._path

    @cached_property
    def weights_digest(self) -> str:
        # config.json belongs to it: another rope theta gives other keys and values from the same weights.
        files = [(file, _header(file)) for file in set(self._files.values())]
        return quick_digest([*files, (self._path / "config.json", b"")])

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        return self._quantization

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._files)

    def file_of(self, name: str) -> Path:
        file = self._files.get(name)
        if file is None:
            self.refuse_missing(name, self._path)
        return file

    def load(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        file = self.file_of(name)
        assert file in self._shards, f"{self._path} is closed"
        try:
            stored: torch.Tensor = self._shards[file].get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ModelError(f"{file}: tensor {name!r} cannot be read: {error}") from error
        if dtype is None or stored.dtype == dtype:
            return stored.clone()  # off the file's memory map, which may change or go
        if not stored.is_floating_point():
            raise ModelError(
                f"{file}: tensor {name!r} holds {_dtype_name(stored.dtype)}, which cannot be read as "
                f"{_dtype_name(dtype)}; packed weights need the quant plugin that knows their format"
            )
        return stored.to(dtype)

    def tokenizer_source(self) -> TokenizerSource:
        return TokenizerSource("hf", self._path, {}, _chat_template(self._path))

    def close(self) -> None:
        self._shards.clear()

    def _stored_dtype(self, files: Mapping[str, Path]) -> str:
        if _EMBEDDINGS not in files:
            near = ", ".join(sorted(files)[:3])
            raise ModelError(f"{self._path} has no tensor {_EMBEDDINGS!r}; it holds {near}, ...")
        code = self._shards[files[_EMBEDDINGS]].get_slice(_EMBEDDINGS).get_dtype()
        return _FLOAT_DTYPES.get(code, "bfloat16")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Which file holds each tensor, from the index or from the only file."""
    index_path, single_path = folder / INDEX_FILE, folder / SINGLE_FILE
    if index_path.exists():
        weight_map = read_json(index_path).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index_path} lacks the object 'weight_map'")
        for name, shard in weight_map.items():
            if not isinstance(shard, str) or Path(shard).name != shard:
                raise ModelError(f"{index_path}: tensor {name!r} must name a file of this folder, got {shard!r}")
        return {name: folder / shard for name, shard in weight_map.items()}
    if single_path.exists():
        return dict.fromkeys(_open_shard(single_path).keys(), single_path)
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickled:
        raise ModelError(
            f"{folder} has its weights only in {pickled[0]}; pickled files can run code and are not read. "
            "Convert them to safetensors"
        )
    raise ModelError(f"{folder} has a config.json, but neither {SINGLE_FILE} nor {INDEX_FILE}")


def _open_shard(file: Path) -> Any:
    if not file.is_file():
        raise ModelError(f"{file} is missing: the index names it as a shard; fetch the model again")
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{file} is truncated or damaged: {error}; fetch it again") from error


def _check_index(files: Mapping[str, Path], shards: Mapping[Path, Any]) -> None:
    held = {file: frozenset(shard.keys()) for file, shard in shards.items()}
    missing = [name for name, file in files.items() if name not in held[file]]
    if missing:
        raise ModelError(
            f"{files[missing[0]]} lacks {len(missing)} tensors that the index places there, first {missing[0]!r}"
        )


def _header(file: Path) -> bytes:
    """The JSON header of a safetensors file whose shape was checked when it was opened."""
    with file.open("rb") as stream:
        (num_bytes,) = struct.unpack("<Q", stream.read(8))
        return stream.read(num_bytes)


def _chat_template(folder: Path) -> str | None:
    """The default chat template: its own file first, as newer folders have it, then tokenizer_config.json."""
    template_path, config_path = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if template_path.exists():
        try:
            return template_path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {template_path}: {error}") from error
    template = read_json(config_path).get("chat_template") if config_path.exists() else None
    if isinstance(template, list):  # several named ones
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{config_path}: 'chat_template' must be a string or a list of named ones")
    return template
