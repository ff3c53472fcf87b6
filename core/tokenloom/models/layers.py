"""The layers that models are made of, and the factory that decides how each one's weights are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, final

import torch

from tokenloom.interfaces.quant import EmbeddingWeights, LayerSpec, LinearWeights, Quantizer, Shard
from tokenloom.models.dense_weights import DenseEmbedding, DenseLinear
from tokenloom.models.load_targets import LoadTarget, WeightsTarget
from tokenloom.models.norms import HeadNorms, NormStorage, RmsNorm
from tokenloom.models.skip_list import SkipList
from tokenloom.ops.table import OpTable
from tokenloom.parallel import ParallelContext

__all__ = ["Embedding", "LayerFactory", "Linear"]


@final
class Linear:
    """A linear layer, possibly several of the checkpoint's fused into one.

    Attributes:
        spec: its name and sizes.
        weights: its storage, dense or a quantizer's.
        apply: x [M, K] -> [M, N], activation dtype; the method of `weights`, so that a call costs nothing extra.
        apply_float32: the same as fp32, for a head.
    """

    def __init__(self, spec: LayerSpec, weights: LinearWeights) -> None:
        self.spec = spec
        self.weights = weights
        self.apply = weights.apply
        self.apply_float32 = weights.apply_float32


@final
class Embedding:
    """Token embedding and, where it is tied, the output head.

    Attributes:
        spec, weights: as in `Linear`.
        lookup: int64 [M] -> [M, hidden size], activation dtype.
        apply, apply_float32: the head: [M, hidden size] -> [M, vocabulary].
    """

    def __init__(self, spec: LayerSpec, weights: EmbeddingWeights) -> None:
        self.spec = spec
        self.weights = weights
        self.lookup = weights.lookup
        self.apply = weights.apply
        self.apply_float32 = weights.apply_float32


@final
class LayerFactory:
    """Makes a model's layers; `targets` holds the loading side of each, in the order of making.

    Args:
        quantizer: stores the layers that it covers, skipped ones excepted.
        skip: layers that stay dense whatever the quantizer says.
        dtype: activation dtype, and the dtype of dense weights.
        device: where weights live.
        parallel: handed on to every layer.
        ops: fused operations for `device`.
        max_model_len: the longest sequence that the engine runs, tokens; None stands for the model's own limit.
    """

    def __init__(
        self,
        quantizer: Quantizer,
        skip: SkipList,
        dtype: torch.dtype,
        device: torch.device,
        parallel: ParallelContext,
        ops: OpTable,
        max_model_len: int | None = None,
    ) -> None:
        self._quantizer = quantizer
        self._skip = skip
        self._parallel = parallel
        self.dtype = dtype
        self.device = device
        self.ops = ops
        self.max_model_len = max_model_len
        self.targets: list[LoadTarget] = []

    def linear(
        self,
        name: str,
        in_features: int,
        shards: Mapping[str, int],
        *,
        has_bias: bool = False,
        axis: Literal["output", "input"] | None = None,
    ) -> Linear:
        """A linear layer from one or more of the checkpoint's: `shards` gives their names and output features."""
        spec = LayerSpec(
            name=name,
            kind="linear",
            in_features=in_features,
            out_features=sum(shards.values()),
            shards=tuple(Shard(shard, size) for shard, size in shards.items()),
            has_bias=has_bias,
            axis=axis,
            parallel=self._parallel,
        )
        weights = self._quantizer.create_linear(spec) if self._is_quantized(spec) else None
        dense_dtype = None if weights is not None else self.dtype
        weights = weights or DenseLinear(spec, self.dtype, self.device, self.ops)
        self.targets.append(WeightsTarget(spec, weights, dense_dtype, self._quantizer.stored_types))
        return Linear(spec, weights)

    def embedding(self, name: str, num_rows: int, size: int, *, tied: bool) -> Embedding:
        """A table of `num_rows` vectors; `tied` makes it the output head as well."""
        spec = LayerSpec(
            name=name,
            kind="embedding",
            in_features=size,
            out_features=num_rows,
            shards=(Shard(name.rpartition(".")[2], num_rows),),
            axis="output",
            parallel=self._parallel,
            tied=tied,
        )
        weights = self._quantizer.create_embedding(spec) if self._is_quantized(spec) else None
        dense_dtype = None if weights is not None else self.dtype
        weights = weights or DenseEmbedding(spec, self.dtype, self.device, self.ops)
        self.targets.append(WeightsTarget(spec, weights, dense_dtype, self._quantizer.stored_types))
        return Embedding(spec, weights)

    def norm(self, name: str, size: int, eps: float, *, offset: float = 0.0) -> RmsNorm:
        """An RMS norm that multiplies by (offset + weight); never quantized."""
        return RmsNorm(self._norm_storage((name,), size, offset), eps, self.ops)

    def head_norms(self, name: str, head_dim: int, num_heads: int, eps: float, *, offset: float = 0.0) -> HeadNorms:
        """The norms q_norm and k_norm below `name`, each over one head of `head_dim`; `num_heads` are the queries'."""
        return HeadNorms(
            self._norm_storage((f"{name}.q_norm", f"{name}.k_norm"), head_dim, offset), num_heads, eps, self.ops
        )

    def _norm_storage(self, names: tuple[str, ...], size: int, offset: float) -> NormStorage:
        storage = NormStorage(names, size, offset, self.dtype, self.device)
        self.targets.append(storage)
        return storage

    def _is_quantized(self, spec: LayerSpec) -> bool:
        return not self._skip.names(spec) and self._quantizer.covers(spec)
