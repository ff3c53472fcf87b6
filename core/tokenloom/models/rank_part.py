"""Which part of a layer's weights a rank holds: the one place where shards are cut for tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import LayerSpec

__all__ = ["RankPart", "rank_part"]


@final
@dataclass(frozen=True, slots=True)
class RankPart:
    """What of one shard's weight [N, K] belongs to this rank.

    Attributes:
        layer: full dotted name of the layer, and the shard's where it has several; for messages.
        shape: (N, K) of the whole shard.
        rows, columns: output and input features of this rank, each without gaps.
        adds_bias: whether this rank adds the layer's bias: one of those that share a sum does.
    """

    layer: str
    shape: tuple[int, int]
    rows: range
    columns: range
    adds_bias: bool

    @property
    def has_all_columns(self) -> bool:
        return len(self.columns) == self.shape[1]

    @property
    def is_whole(self) -> bool:
        return self.has_all_columns and len(self.rows) == self.shape[0]

    def of_weight(self, values: torch.Tensor) -> torch.Tensor:
        """[N, K] -> [N of this rank, K of this rank]; a copy, unless it is all."""
        if self.is_whole:
            return values
        part = values[self.rows.start : self.rows.stop, self.columns.start : self.columns.stop]
        return part.clone(memory_format=torch.contiguous_format)

    def of_rows(self, values: torch.Tensor) -> torch.Tensor:
        """[N, ...] -> [N of this rank, ...]; a copy, unless it is all."""
        if len(self.rows) == self.shape[0]:
            return values
        return values[self.rows.start : self.rows.stop].clone(memory_format=torch.contiguous_format)

    def of_bias(self, bias: torch.Tensor) -> torch.Tensor | None:
        """[N] -> [N of this rank], or None on ranks that do not add it."""
        return self.of_rows(bias) if self.adds_bias else None

    def require_whole_groups(self, group_size: int) -> None:
        """For forms whose input features share scales in groups that cannot be cut.

        Raises:
            ModelError: this rank would get parts of groups.
        """
        if self.has_all_columns or not len(self.columns) % group_size:
            return
        num_columns = self.shape[1]
        size = num_columns // len(self.columns)
        fitting = _fitting_sizes(num_columns // group_size, num_columns % group_size == 0)
        raise ModelError(
            f"{self.layer}: a tensor-parallel size of {size} cuts its {num_columns} input features within groups of "
            f"{group_size}; {fitting}, or leave the layer as it is (quant.skip)"
        )

    def looked_up(self, token_ids: torch.Tensor, rows_of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Rows of an embedding that is cut along its rows.

        Args:
            token_ids: int64 [M], over all ranks.
            rows_of: int64 [M], rows of this rank's table, which has at least one -> [M, K].

        Returns:
            [M, K], zeros for rows of other ranks.
        """
        if len(self.rows) == self.shape[0]:
            return rows_of(token_ids)
        is_here = (token_ids >= self.rows.start) & (token_ids < self.rows.stop)  # [M]
        local = torch.where(is_here, token_ids - self.rows.start, 0)
        return rows_of(local).masked_fill(~is_here.unsqueeze(1), 0.0)


def rank_part(spec: LayerSpec, shard_name: str) -> RankPart:
    """The part of a shard that the rank of `spec.parallel` holds, by `spec.axis`.

    Along "output" each shard is cut by itself, so that a rank has the same heads of q, k and v, and both halves of gate
    and up. A shard that several ranks share (`Shard.num_replicas`) is cut into fewer parts.

    Args:
        spec: the layer.
        shard_name: name of one of its shards.

    Raises:
        ModelError: the features cannot be cut into equal parts.
    """
    (shard,) = (each for each in spec.shards if each.name == shard_name)
    rank, size = spec.parallel.rank, spec.parallel.size
    assert 0 <= rank < size, f"{spec.name}: rank {rank} of {size}"
    layer = spec.name if len(spec.shards) == 1 else f"{spec.name}, shard {shard_name}"
    num_rows, num_columns = shard.out_features, spec.in_features
    rows, columns = range(num_rows), range(num_columns)
    if spec.axis == "output":
        replicas = shard.num_replicas
        assert size % replicas == 0, f"{layer}: {replicas} replicas among {size} ranks"
        rows = _equal_part(layer, "output", num_rows, rank // replicas, size // replicas)
    elif spec.axis == "input":
        columns = _equal_part(layer, "input", num_columns, rank, size)
    return RankPart(layer, (num_rows, num_columns), rows, columns, adds_bias=spec.axis != "input" or rank == 0)


def _equal_part(layer: str, side: str, num_features: int, index: int, num_parts: int) -> range:
    if num_features % num_parts:
        raise ModelError(
            f"{layer}: its {num_features} {side} features cannot be cut into {num_parts} equal parts for tensor "
            f"parallelism; {_fitting_sizes(num_features, True)}"
        )
    length = num_features // num_parts
    return range(index * length, (index + 1) * length)


def _fitting_sizes(num_units: int, has_whole_units: bool) -> str:
    """The sizes that cut `num_units` evenly, as a sentence's part."""
    sizes = [size for size in range(2, min(num_units, 16) + 1) if num_units % size == 0] if has_whole_units else []
    return f"sizes up to 16 that fit are {', '.join(map(str, (1, *sizes)))}"
