"""Contract `quant` 1.2: how weights are stored and multiplied.

The core walks the model, decides by full dotted names which layers are skipped, and asks the quantizer for the storage
of each other layer. The loader then hands over checkpoint tensors shard by shard; `finalize` packs them once.

Words: N output features, K input features, M rows of activations.

Version 1.2 adds `QuantContext.operations` and `Quantizer.remarks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from pydantic import Field

from tokenloom.interfaces.contract import CONTRACT_VERSIONS, PluginConfig
from tokenloom.parallel import ParallelContext

__all__ = [
    "CONTRACT_VERSION",
    "EmbeddingWeights",
    "LayerSpec",
    "LinearWeights",
    "QuantConfig",
    "QuantContext",
    "Quantizer",
    "Shard",
]

CONTRACT_VERSION = CONTRACT_VERSIONS["quant"]


@dataclass(frozen=True, slots=True)
class QuantContext:
    """What a quantizer knows when it is built.

    Attributes:
        dtype: activation dtype.
        device: where weights live.
        checkpoint: the checkpoint's own quantization settings (`quantization_config`), or an empty mapping.
        deterministic: results of a row must not depend on the other rows, bit for bit.
        stored_types: types of blocks that occur in the checkpoint, such as "Q4_1" of GGUF; see
            `Quantizer.stored_types`.
        operations: what computes the other layers, "torch", "native" or "triton"; see `engine.operations`. With
            "triton" on a CPU, Triton interprets its kernels, or memory is only being planned.
    """

    dtype: torch.dtype
    device: torch.device
    checkpoint: Mapping[str, Any] = field(default_factory=dict)
    deterministic: bool = False
    stored_types: frozenset[str] = frozenset()
    operations: Literal["torch", "native", "triton"] = "torch"


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of a fused layer, as the checkpoint has it.

    Attributes:
        name: last part of the checkpoint's name, e.g. "q_proj".
        out_features: its output features, over all ranks.
        num_replicas: ranks that hold the same part (KV heads are replicated when there are fewer than ranks): a rank
            holds part rank // num_replicas of size // num_replicas.
    """

    name: str
    out_features: int
    num_replicas: int = 1


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer to store. Sizes are those of the whole layer, over all ranks.

    Attributes:
        name: full dotted name without ".weight", e.g. "model.layers.0.self_attn.qkv_proj".
        kind: "linear" or "embedding" ("experts" comes with mixture models).
        in_features: K; for an embedding, the hidden size.
        out_features: N over all shards; for an embedding, the vocabulary.
        shards: parts of N in order, at least one; a plain layer has one shard named like the last part of `name`.
        has_bias: whether a bias [N] is added.
        axis: how tensor parallelism would split it: "output", "input" or None.
        parallel: rank and size.
        tied: the tensor also serves as the other end (embedding used as head).
    """

    name: str
    kind: Literal["linear", "embedding", "experts"]
    in_features: int
    out_features: int
    shards: tuple[Shard, ...]
    has_bias: bool = False
    axis: Literal["output", "input"] | None = None
    parallel: ParallelContext = field(default_factory=ParallelContext)
    tied: bool = False


class LinearWeights(ABC):
    """Stored weights of one linear layer."""

    @abstractmethod
    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        """Takes one checkpoint tensor of one shard, whole; the storage keeps this rank's part.

        Only the format knows how to cut it: act-order GPTQ split along K, for one, keeps the scales of all groups on
        every rank, and its local groups differ in length.

        Args:
            shard: name of the shard.
            parameter: the tensor's last name part: "weight", "bias", or a format's own ("qweight", "scales"); one of
                the quantizer's `stored_types` in place of "weight" for blocks of that type.
            tensor: as in the checkpoint; [N of the shard, K] for "weight", uint8 [N of the shard, bytes of a row] for
                blocks. Not changed; a quantizer's storage keeps nothing of its memory after `finalize`.
        """

    @abstractmethod
    def finalize(self) -> None:
        """Called once, when all shards are loaded: packs, converts, frees what is not needed."""

    @abstractmethod
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies.

        Args:
            x: [M, K of this rank], activation dtype; M may be 0. Only the last dimension is sure to be contiguous.
                Not changed.

        Returns:
            [M, N of this rank], activation dtype: x @ W.T (+ bias), W being the dequantized weights. Rounding of
            activations, if any, is per row, never over the batch. Split along "input" it is this rank's partial sum,
            which the core reduces, and only rank 0 adds the bias.
        """

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        """What `apply` gives, as fp32 [M, N]: what a head calls. Overridden where sums need no rounding before."""
        return self.apply(x).float()

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of stored weights."""


class EmbeddingWeights(LinearWeights):
    """Stored weights of an embedding; `apply` is the tied head."""

    @abstractmethod
    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows of the table: int64 [M] -> [M, hidden size], activation dtype; zeros for rows of other ranks."""


class QuantConfig(PluginConfig):
    """Base of quant Configs: the skip list, which the core applies whatever the plugin."""

    skip: tuple[str, ...] = Field(
        default=(), description="Layers to leave as they are: full dotted names or prefixes, e.g. model.layers.0.mlp."
    )

    @abstractmethod
    def build(self, context: QuantContext) -> Quantizer: ...


class Quantizer(ABC):
    """Chooses which layers it stores, and how."""

    @abstractmethod
    def covers(self, spec: LayerSpec) -> bool:
        """Whether this quantizer stores the layer; the core stores the others as they are (dense).

        Depends on the layer alone, not on what was asked before nor on `QuantConfig.skip`, which the core applies.
        """

    @abstractmethod
    def create_linear(self, spec: LayerSpec) -> LinearWeights:
        """Empty storage for a linear layer that `covers` agreed to."""

    @abstractmethod
    def create_embedding(self, spec: LayerSpec) -> EmbeddingWeights:
        """Empty storage for an embedding that `covers` agreed to."""

    @property
    def stored_types(self) -> frozenset[str]:
        """Types of blocks that `LinearWeights.load` takes as a checkpoint stores them, by the format's names ("Q4_1" of
        GGUF). Blocks of all other types come decoded, as "weight"."""
        return frozenset()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was decided while weights were loaded, a sentence each: which stay packed, which are dequantized, and
        why. For programs; `ModelFacts.weight_remarks` repeats it."""
        return ()

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Names method and settings; part of every KV block key, so that differently rounded models share nothing."""
