"""RMS norms: over the hidden size, with the sum into the residual stream, and over each head of queries and keys.

Where a family multiplies by (offset + weight), the offset is added once, when the weight is loaded, in fp32; such norms
keep their weight and their product in fp32, as the models were trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch

from tokenloom.models.load_targets import LoadTarget
from tokenloom.ops.table import OpTable

__all__ = ["HeadNorms", "NormStorage", "RmsNorm"]


@final
class NormStorage(LoadTarget):
    """The weights of one or more norms, each [size]: row i of `weight` belongs to `names[i]`.

    Args:
        names: full names in the checkpoint, without ".weight".
        size: elements of each.
        offset: added to each element.
        dtype: activation dtype; the weights' own where there is no offset.
        device: where weights live.
    """

    def __init__(
        self, names: tuple[str, ...], size: int, offset: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._rows: Mapping[str, int] = {f"{name}.weight": row for row, name in enumerate(names)}
        self._names = names
        self._offset = offset
        self._loaded: set[str] = set()
        self.weight = torch.empty(
            len(names), size, dtype=dtype if offset == 0.0 else torch.float32, device=device
        )  # [names, size]

    @property
    def parts(self) -> tuple[str, ...]:
        return self._names

    def required(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def accepts(self, name: str) -> bool:
        return name in self._rows

    def shape(self, name: str) -> tuple[int, ...] | None:
        assert name in self._rows, f"norms {self._names} were given {name}"
        return (self.weight.shape[1],)

    @property
    def load_dtype(self) -> torch.dtype | None:
        return self.weight.dtype

    def load(self, name: str, tensor: torch.Tensor) -> None:
        self.weight[self._rows[name]] = tensor.to(self.weight.device) + self._offset
        self._loaded.add(name)

    def finalize(self) -> None:
        assert len(self._loaded) == len(self._rows), f"norms {self._names}: only {sorted(self._loaded)} were loaded"

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes


@final
class RmsNorm:
    """RMS norm with a weight [H]."""

    def __init__(self, storage: NormStorage, eps: float, ops: OpTable) -> None:
        self._weight = storage.weight[0]  # [H], filled by loading
        self._eps = eps
        self._rms_norm = ops.rms_norm
        self._add_rms_norm = ops.add_rms_norm

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, H] -> [T, H]."""
        return self._rms_norm(x, self._weight, self._eps)

    def enter(self, delta: torch.Tensor | None, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (norm of residual + delta, that sum); the sum is written into `residual`. None adds nothing."""
        if delta is None:
            return self._rms_norm(residual, self._weight, self._eps), residual
        return self._add_rms_norm(delta, residual, self._weight, self._eps)


@final
class HeadNorms:
    """RMS norms of queries and keys, each over one head, in one operation.

    Args:
        storage: of the two norms, queries first; [2, D].
        num_heads: query heads; the rest are keys.
        eps: added to the mean square.
        ops: fused operations.
    """

    def __init__(self, storage: NormStorage, num_heads: int, eps: float, ops: OpTable) -> None:
        self._storage = storage
        self._num_heads = num_heads
        self._eps = eps
        self._head_rms_norm = ops.head_rms_norm

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """[T, Hq + Hkv, D], queries first -> the same shape, a new tensor."""
        return self._head_rms_norm(heads, self._storage.weight, self._num_heads, self._eps)

    def of_keys(self, keys: torch.Tensor) -> torch.Tensor:
        """[T, Hkv, D] -> the same shape, a new tensor."""
        return self._head_rms_norm(keys, self._storage.weight, 0, self._eps)
