"""Linear layers and embeddings that keep a GGUF file's blocks; other weights they keep in the model's dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

import torch

from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import EmbeddingWeights, LayerSpec, LinearWeights
from tokenloom.models.rank_part import rank_part
from tokenloom.ops import torch_ops
from tokenloom.ops.packed_linear import PlainLinear
from tokenloom.ops.weight_memory import WeightMemory
from tokenloom_quant.gguf.block_codes import BLOCK_CODES
from tokenloom_quant.low_bit.affine_codes import AffineCodes, joined_codes
from tokenloom_quant.low_bit.product import LowBitProduct

__all__ = ["GGUFEmbedding", "GGUFLinear", "GGUFStorage"]

Product = LowBitProduct | PlainLinear


@dataclass(frozen=True, slots=True)
class GGUFStorage:
    """What all layers of a model share.

    Attributes:
        dtype: of activations.
        deterministic: results of a row must not depend on the other rows.
        rounds_activations: whether activations are rounded to int8, a scale for each row and group.
        memory: where packed weights go.
    """

    dtype: torch.dtype
    deterministic: bool
    rounds_activations: bool
    memory: WeightMemory


@final
class GGUFLinear(LinearWeights):
    """Shards of one type below each other are one product; a layer of several types has several."""

    def __init__(self, spec: LayerSpec, storage: GGUFStorage) -> None:
        self._spec = spec
        self._storage = storage
        self._parts: dict[str, AffineCodes | torch.Tensor] = {}  # per shard, until finalize
        self._biases: dict[str, torch.Tensor] = {}
        self._products: tuple[Product, ...] = ()

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        """As in the contract. Raises ModelError for parameters of other formats, and for sizes that cannot be cut."""
        part = rank_part(self._spec, shard)
        if parameter == "bias":
            bias = part.of_bias(tensor)
            if bias is not None:
                self._biases[shard] = bias.to(self._storage.dtype)
        elif parameter in BLOCK_CODES:
            codes = BLOCK_CODES[parameter].encode(tensor)
            part.require_whole_groups(codes.shared_columns)
            self._parts[shard] = codes.of_rank(part)
        elif parameter == "weight" and tensor.is_floating_point():
            self._parts[shard] = part.of_weight(tensor).to(self._storage.dtype, copy=True)
        else:
            raise ModelError(
                f"quant=gguf, layer {self._spec.name}, shard {shard}: takes blocks of {', '.join(BLOCK_CODES)} and "
                f"plain weights, got {parameter!r} of {tensor.dtype}; choose the quant plugin that reads this "
                "checkpoint's format"
            )

    def finalize(self) -> None:
        shards = self._spec.shards
        missing = [shard.name for shard in shards if shard.name not in self._parts]
        if missing:
            raise ModelError(f"quant=gguf, layer {self._spec.name}: no weight came for {', '.join(missing)}")
        products: list[Product] = []
        adds_bias = self._spec.has_bias and rank_part(self._spec, shards[0].name).adds_bias
        for _, run in groupby(shards, key=lambda shard: _kind(self._parts[shard.name])):
            names = [shard.name for shard in run]
            bias = torch.cat([self._biases[name] for name in names]) if adds_bias else None
            products.append(self._product([self._parts[name] for name in names], bias))
        self._products = tuple(products)
        self._parts.clear()
        self._biases.clear()

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiplied([product.apply(x) for product in self._products])

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiplied([product.apply_float32(x) for product in self._products])

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of the weight of a layer with one shard: int64 [M] -> [M, K]."""
        (product,) = self._products
        return product.rows(indices).to(self._storage.dtype)

    @property
    def products(self) -> tuple[Product, ...]:
        """The packed weights; there after `finalize`."""
        return self._products

    @property
    def num_bytes(self) -> int:
        return sum(product.num_bytes for product in self._products)

    def _multiplied(self, parts: list[torch.Tensor]) -> torch.Tensor:
        assert parts, f"{self._spec.name} was used before it was finalized"
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _product(self, parts: Sequence[AffineCodes | torch.Tensor], bias: torch.Tensor | None) -> Product:
        codes = [part for part in parts if isinstance(part, AffineCodes)]
        if codes:
            return LowBitProduct(
                joined_codes(codes),
                bias,
                rounds_activations=self._storage.rounds_activations,
                memory=self._storage.memory,
            )
        weight = torch.cat([part for part in parts if isinstance(part, torch.Tensor)])
        linear: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor] = torch_ops.linear
        return PlainLinear(weight, bias, torch_ops.row_invariant_linear if self._storage.deterministic else linear)


@final
class GGUFEmbedding(EmbeddingWeights):
    """A table of blocks; as a tied head it multiplies like a linear layer."""

    def __init__(self, spec: LayerSpec, storage: GGUFStorage) -> None:
        self._linear = GGUFLinear(spec, storage)
        self._part = rank_part(spec, spec.shards[0].name)

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        self._linear.load(shard, parameter, tensor)

    def finalize(self) -> None:
        self._linear.finalize()

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._part.looked_up(token_ids, self._linear.rows)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear.apply(x)

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear.apply_float32(x)

    @property
    def products(self) -> tuple[Product, ...]:
        """The packed table; there after `finalize`."""
        return self._linear.products

    @property
    def num_bytes(self) -> int:
        return self._linear.num_bytes


def _kind(part: AffineCodes | torch.Tensor) -> tuple[int, int, bool]:
    """What shards that are one product have in common."""
    return (part.bits, part.group_size, part.minimum is None) if isinstance(part, AffineCodes) else (0, 0, False)
