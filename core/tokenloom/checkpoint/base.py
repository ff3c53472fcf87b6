"""The contract of an opened checkpoint: its config, its tensors under one set of names, its tokenizer, its identity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.errors import ModelError, did_you_mean

if TYPE_CHECKING:
    import torch

    from tokenloom.model_config import ModelConfig

__all__ = ["Checkpoint", "StoredTensor"]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in the blocks of its file.

    Attributes:
        type_name: of the blocks, in the format's words, such as "Q4_1".
        shape: of the numbers that they stand for, [out, in].
        blocks: uint8 [out, bytes of a row]; rows in the order that `Checkpoint.load` gives them.
    """

    type_name: str
    shape: tuple[int, ...]
    blocks: torch.Tensor


class Checkpoint(ABC):
    """Weights on disk, whatever their format.

    Tensors carry Hugging Face's names (`model.embed_tokens.weight`, `model.layers.{i}.self_attn.q_proj.weight`,
    `model.norm.weight`, `lm_head.weight`) and row order. `lm_head.weight` does not exist where the config ties it to
    the embeddings. Tensors come as stored: whoever builds the model checks each with `expect`.
    """

    @property
    @abstractmethod
    def config(self) -> ModelConfig:
        """The model's sizes and settings, already validated."""

    @property
    @abstractmethod
    def path(self) -> Path:
        """The .gguf file or the folder that was opened."""

    @property
    @abstractmethod
    def weights_digest(self) -> str:
        """Identifies these weights, for cache keys: other weights give another digest. Reads a few kilobytes a file."""

    @property
    @abstractmethod
    def quantization(self) -> Mapping[str, Any] | None:
        """`quantization_config` of config.json as it stands there, or None. GGUF blocks are decoded and give None."""

    @abstractmethod
    def tensor_names(self) -> tuple[str, ...]:
        """The names of all tensors, in file order."""

    @abstractmethod
    def file_of(self, name: str) -> Path:
        """The file that holds a tensor. Raises ModelError where none does."""

    @abstractmethod
    def load(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Reads one tensor.

        Args:
            name: one of `tensor_names()`.
            dtype: the floating dtype wanted; None keeps what is stored (GGUF blocks become float32).

        Returns:
            A CPU tensor that owns its memory, in the shape that is stored.

        Raises:
            ModelError: no such tensor (with near matches); it cannot be read; or it holds integers, as packed
                quantized weights do, and a dtype was asked for.
        """

    @abstractmethod
    def stored_form(self, name: str) -> tuple[str, tuple[int, ...]]:
        """What a tensor is stored in ("int32", "Q4_1"), and its shape, without reading it. Raises ModelError if
        there is none of that name."""

    @property
    def stored_types(self) -> frozenset[str]:
        """The types of blocks that occur; empty where all tensors are plain numbers."""
        return frozenset()

    def stored_type(self, name: str) -> str | None:  # noqa: ARG002  (for formats that have blocks)
        """The type of a tensor's blocks; None where it is plain numbers."""
        return None

    def load_stored(self, name: str) -> StoredTensor:
        """One tensor that has a `stored_type`, as it is stored; to be read before `close`."""
        raise AssertionError(f"{self.path} holds no blocks, but those of {name!r} were asked for")

    @abstractmethod
    def tokenizer_source(self) -> TokenizerSource:
        """Where the tokenizer and the chat template are."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of the files. Loaded tensors stay valid."""

    def expect(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns `tensor`. Raises ModelError, naming file, tensor and both shapes, if its shape is not `shape`."""
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{self.file_of(name)}: tensor {name!r} has shape {list(tensor.shape)}; "
                f"the model's config asks for {list(shape)}"
            )
        return tensor

    def refuse_missing(self, name: str, where: Path) -> NoReturn:
        """Raises the ModelError for a tensor that `where` does not hold."""
        raise ModelError(f"{where} has no tensor {name!r}.{did_you_mean(name, self.tensor_names())}")
