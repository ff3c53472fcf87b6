"""Linear layers and embeddings whose weights are codes: shards are encoded as they come, and packed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import EmbeddingWeights, LayerSpec, LinearWeights
from tokenloom.models.rank_part import RankPart, rank_part
from tokenloom.ops.weight_memory import WeightMemory
from tokenloom_quant.low_bit.affine_codes import AffineCodes, joined_codes
from tokenloom_quant.low_bit.product import LowBitProduct
from tokenloom_quant.rounded_shards import RoundedShards

__all__ = ["LowBitEmbedding", "LowBitFormat", "LowBitLinear"]


@dataclass(frozen=True, slots=True)
class LowBitFormat:
    """How a plugin stores weights.

    Attributes:
        name: of the plugin.
        encode: a shard's floating weight [N, K] -> codes.
        rounds_activations: whether activations are rounded to int8, a scale for each row and group.
        activation_group: input features that share that scale; None stands for the weight's groups.
    """

    name: str
    encode: Callable[[torch.Tensor], AffineCodes]
    rounds_activations: bool
    activation_group: int | None = None


@final
class LowBitLinear(LinearWeights):
    """One matrix [N, K] as codes, and a bias [N] where the spec has one."""

    def __init__(self, spec: LayerSpec, weight_format: LowBitFormat, dtype: torch.dtype, memory: WeightMemory) -> None:
        self._spec = spec
        self._format = weight_format
        self._memory = memory
        self._shards: RoundedShards[AffineCodes] = RoundedShards(weight_format.name, spec, dtype, torch.device("cpu"))
        self._product: LowBitProduct | None = None

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        """As in the contract. Raises ModelError for packed parameters and for weights that are not finite numbers."""
        self._shards.load(shard, parameter, tensor, self._encode)

    def finalize(self) -> None:
        codes, bias = self._shards.take()
        rounds_activations = self._format.rounds_activations
        self._product = LowBitProduct(
            joined_codes(codes),
            bias,
            rounds_activations=rounds_activations,
            memory=self._memory,
            activation_group=self._format.activation_group,
        )

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self.product.apply(x)

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        return self.product.apply_float32(x)

    @property
    def product(self) -> LowBitProduct:
        """The packed weights; there after `finalize`."""
        assert self._product is not None, f"{self._spec.name} was used before it was finalized"
        return self._product

    @property
    def num_bytes(self) -> int:
        return self.product.num_bytes

    def _encode(self, weight: torch.Tensor, part: RankPart, where: str) -> AffineCodes:
        if not bool(torch.isfinite(weight).all()):
            raise ModelError(f"{where}: the weights hold infinities or NaN")
        codes = self._format.encode(weight)
        part.require_whole_groups(self._format.activation_group or codes.shared_columns)
        return codes.of_rank(part)


@final
class LowBitEmbedding(EmbeddingWeights):
    """A table of codes; as a tied head it multiplies like a linear layer."""

    def __init__(self, spec: LayerSpec, weight_format: LowBitFormat, dtype: torch.dtype, memory: WeightMemory) -> None:
        self._linear = LowBitLinear(spec, weight_format, dtype, memory)
        self._part = rank_part(spec, spec.shards[0].name)
        self._dtype = dtype

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        self._linear.load(shard, parameter, tensor)

    def finalize(self) -> None:
        self._linear.finalize()

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._part.looked_up(token_ids, self.product.rows).to(self._dtype)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self.product.apply(x)

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        return self.product.apply_float32(x)

    @property
    def product(self) -> LowBitProduct:
        """The packed table; there after `finalize`."""
        return self._linear.product

    @property
    def num_bytes(self) -> int:
        return self._linear.num_bytes
