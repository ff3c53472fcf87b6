"""A Hugging Face folder as a `Checkpoint`: config.json with safetensors or pickled weights, whole or in shards."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.errors import ModelError
from tokenloom.json_file import read_json
from tokenloom.loader.hf_config import HFConfigFile
from tokenloom.loader.tensor_names import EMBEDDINGS, HEAD, canonical_names
from tokenloom.loader.weight_file import WeightFile
from tokenloom.loader.weight_layout import open_weights
from tokenloom.loader.weights_digest import quick_digest
from tokenloom.model_config import ModelConfig

__all__ = ["HFCheckpoint"]

_PLAIN_DTYPES = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
"""What can be read as another float type; narrower ones mean nothing without their scales."""

_log = logging.getLogger(__name__)


@final
class HFCheckpoint(Checkpoint):
    """Opens the folder and the header of every shard; tensor data is read by `load` only (older pickles: at once).

    The head follows from config.json, and where that is silent from the weights; see `_head`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        config_file = HFConfigFile(path)
        self._files = open_weights(path)
        self._stored_names = canonical_names(self._files, str(path))
        self._quantization = config_file.quantization
        config = config_file.model_config(self._dtype_of_embeddings(), self._stored_names)
        self._config = replace(config, tie_word_embeddings=self._is_head_tied(config, config_file))
        if self._config.tie_word_embeddings:
            self._stored_names = {
                name: stored for name, stored in self._stored_names.items() if not name.startswith(HEAD)
            }

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def path(self) -> Path:
        return self._path

    @cached_property
    def weights_digest(self) -> str:
        # config.json belongs to it: another rope theta gives other keys and values from the same weights.
        files = {file.path: file for file in self._files.values()}
        headers = [(path, file.header()) for path, file in files.items()]
        return quick_digest([*headers, (self._path / "config.json", b"")])

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        return self._quantization

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._stored_names)

    def file_of(self, name: str) -> Path:
        if name not in self._stored_names:
            self.refuse_missing(name, self._path)
        return self._file(name).path

    def load(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        path = self.file_of(name)
        stored = self._view(name)
        if dtype is None or stored.dtype == dtype:
            # A copy: the file's memory map may change or go.
            return stored.clone(memory_format=torch.contiguous_format)
        if stored.dtype not in _PLAIN_DTYPES:
            raise ModelError(
                f"{path}: tensor {name!r} holds {_dtype_name(stored.dtype)}, which cannot be read as "
                f"{_dtype_name(dtype)}; packed weights need the quant plugin that knows their format"
            )
        return stored.to(dtype, memory_format=torch.contiguous_format)

    def stored_form(self, name: str) -> tuple[str, tuple[int, ...]]:
        self.file_of(name)
        stored = self._view(name)
        return _dtype_name(stored.dtype), tuple(stored.shape)

    def tokenizer_source(self) -> TokenizerSource:
        return TokenizerSource("hf", self._path, {}, _chat_template(self._path))

    def close(self) -> None:
        for file in set(self._files.values()):
            file.close()
        self._files = {}

    def _file(self, name: str) -> WeightFile:
        assert self._files, f"{self._path} is closed"
        return self._files[self._stored_names[name]]

    def _view(self, name: str) -> torch.Tensor:
        return self._file(name).view(self._stored_names[name])

    def _dtype_of_embeddings(self) -> str:
        """What they are stored in, even if packed. Raises ModelError if only a quantization could have packed them."""
        if EMBEDDINGS in self._stored_names:
            return self._file(EMBEDDINGS).dtype_name(self._stored_names[EMBEDDINGS])
        if self._quantization is None:
            self.refuse_missing(EMBEDDINGS, self._path)
        return "packed"

    def _is_head_tied(self, config: ModelConfig, config_file: HFConfigFile) -> bool:
        """Whether the embeddings are the head as well.

        - tied, as config.json states or the family does by default: a stored head that equals the embeddings is
          another copy. One that differs was trained apart, and is used (with a warning), as Transformers does.
        - untied, as config.json states: the head must be there.
        - untied only by the family's default: a folder without a head ties it, unless it holds the inner part of a
          model: that never has a head, so its absence says nothing.
        """
        has_head = any(name.startswith(HEAD) for name in self._stored_names)
        if config.tie_word_embeddings:
            if not has_head or self._head_equals_embeddings():
                return True
            _log.warning(
                "%s: config.json ties the head to the embeddings, but the weights hold another one, which is used",
                self._path,
            )
            return False
        if not has_head and config_file.states_tie is None and config_file.is_inner_part:
            raise ModelError(
                f"{self._path} holds the inner part of a model, without its head, and config.json does not say whether "
                "the embeddings are the head; fetch the whole model, or set 'tie_word_embeddings' to true if they are"
            )
        if not has_head and config_file.states_tie is False:
            raise ModelError(
                f"{self._path} has no tensor 'lm_head.weight', though config.json sets 'tie_word_embeddings' to false; "
                "fetch the model again, or set it to true if the embeddings are the head"
            )
        return not has_head

    def _head_equals_embeddings(self) -> bool:
        name = f"{HEAD}weight"
        if name not in self._stored_names or EMBEDDINGS not in self._stored_names:  # packed
            return False
        head, embeddings = self._view(name), self._view(EMBEDDINGS)
        if head.dtype != embeddings.dtype or head.shape != embeddings.shape:
            return False
        return head.data_ptr() == embeddings.data_ptr() or torch.equal(head, embeddings)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
