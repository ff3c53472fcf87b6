"""What a checkpoint format must know: which layers it stores, and how the tensors of one shard become its weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NoReturn, final

import torch

from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import LayerSpec
from tokenloom_quant.affine_weight import ReadWeight

__all__ = ["CheckpointFormat", "ShardTensors"]

_PLAIN = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})


@final
class ShardTensors:
    """The tensors that a checkpoint holds of one shard, without its bias. Errors name layer and shard.

    Args:
        plugin: the quant plugin's name.
        part: full dotted name of the shard, e.g. "model.layers.0.self_attn.q_proj".
        num_rows, num_columns: N of the shard, and K.
        tensors: by parameter name.
    """

    def __init__(
        self, plugin: str, part: str, num_rows: int, num_columns: int, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self.part = part
        self.num_rows = num_rows
        self.num_columns = num_columns
        self._plugin = plugin
        self._tensors = dict(tensors)
        self._held = ", ".join(sorted(tensors)) or "nothing"

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @property
    def is_plain(self) -> bool:
        """Whether it is one weight of plain numbers: a layer that the checkpoint left as it was."""
        return set(self._tensors) == {"weight"} and self._tensors["weight"].dtype in _PLAIN

    def take(self, name: str, shape: tuple[int, ...] | None, *dtypes: torch.dtype) -> torch.Tensor:
        """The tensor `name`, which is then used up.

        Raises:
            ModelError: it is missing, of another shape than `shape` or of none of `dtypes` (if any are named).
        """
        if name not in self._tensors:
            self.refuse(f"lacks the tensor {name!r}; the checkpoint holds {self._held}. Fetch the model again")
        tensor = self._tensors.pop(name)
        if dtypes and tensor.dtype not in dtypes:
            wanted = " or ".join(_name(dtype) for dtype in dtypes)
            self.refuse(f"tensor {name!r} must be {wanted}, got {_name(tensor.dtype)}")
        if shape is not None and tuple(tensor.shape) != shape:
            self.refuse(f"tensor {name!r} must have the shape {list(shape)}, got {list(tensor.shape)}")
        return tensor

    def find(self, name: str, shape: tuple[int, ...] | None, *dtypes: torch.dtype) -> torch.Tensor | None:
        """As `take`, but None where there is none."""
        return self.take(name, shape, *dtypes) if name in self._tensors else None

    def refuse_rest(self) -> None:
        """Raises ModelError if anything was not taken."""
        if self._tensors:
            self.refuse(
                f"holds {', '.join(map(repr, sorted(self._tensors)))}, which the format's settings give no meaning to"
            )

    def refuse(self, what: str) -> NoReturn:
        """Raises ModelError, naming plugin, layer and shard."""
        raise ModelError(f"quant={self._plugin}, {self.part}: {what}")


class CheckpointFormat(ABC):
    """How a kind of quantized checkpoint stores weights. Built from its `quantization_config`, which it checks."""

    @abstractmethod
    def covers(self, spec: LayerSpec) -> bool:
        """Whether the checkpoint may hold this layer in its own form. Plain weights are taken for such layers, too."""

    @abstractmethod
    def read(self, shard: ShardTensors) -> ReadWeight:
        """The weight of a shard that is not plain; takes every tensor that it knows.

        Raises:
            ModelError: a tensor is missing or has the wrong shape.
        """


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
