"""Linear layers of quantized checkpoints: packed where the product with their codes is exact, else dequantized."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch.nn import functional

from tokenloom.interfaces.quant import LayerSpec, LinearWeights, Shard
from tokenloom.models.rank_part import rank_part
from tokenloom.models.skip_list import part_names
from tokenloom.ops import torch_ops
from tokenloom.ops.packed_linear import PlainLinear
from tokenloom_quant.affine_format import CheckpointFormat, ShardTensors
from tokenloom_quant.affine_weight import ReadWeight
from tokenloom_quant.fp8_blocks import ScaledFloats
from tokenloom_quant.low_bit.affine_codes import AffineCodes
from tokenloom_quant.low_bit.packed_product import PackedProduct
from tokenloom_quant.packed_products import PackedProducts

__all__ = ["CheckpointLinear", "CheckpointStorage"]


@dataclass(frozen=True, slots=True)
class CheckpointStorage:
    """What all layers of a model share.

    Attributes:
        plugin: the quant plugin's name.
        dtype: of activations.
        device: where weights live.
        deterministic: results of a row must not depend on the other rows.
        products: multiply packed weights, where that can be; None dequantizes all.
        requires_packed: whether a layer that cannot be multiplied so is an error.
        told: what was said already, in order.
    """

    plugin: str
    dtype: torch.dtype
    device: torch.device
    deterministic: bool
    products: PackedProducts | None
    requires_packed: bool = False
    told: list[str] = field(default_factory=list)

    def tell(self, what: str) -> None:
        """Says once, on stderr, how weights are stored."""
        if what not in self.told:
            self.told.append(what)
            print(f"tokenloom: quant={self.plugin} {what}", file=sys.stderr, flush=True)


@final
class CheckpointLinear(LinearWeights):
    """Shards that agree in form are one product, others have their own; a bias [N] where the spec has one.

    Tensors are read whole, and cut to this rank's part as codes and scales: a word may hold codes of several ranks.

    Raises:
        ModelError: a shard cannot be cut for this number of ranks.
    """

    def __init__(self, spec: LayerSpec, weight_format: CheckpointFormat, storage: CheckpointStorage) -> None:
        self._spec = spec
        self._rank_parts = {shard.name: rank_part(spec, shard.name) for shard in spec.shards}
        self._format = weight_format
        self._storage = storage
        self._tensors: dict[str, dict[str, torch.Tensor]] = {shard.name: {} for shard in spec.shards}
        self._products: tuple[_Product, ...] = ()

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        self._tensors[shard][parameter] = tensor

    def finalize(self) -> None:
        """Raises ModelError for tensors that are missing, unknown or of the wrong shape."""
        parts = [self._read(shard, part) for shard, part in zip(self._spec.shards, part_names(self._spec))]
        runs: list[list[_Part]] = []
        for part in parts:
            if runs and _is_alike(runs[-1][-1].weight, part.weight):
                runs[-1].append(part)
            else:
                runs.append([part])
        self._products = tuple(_Product(run, self._storage) for run in runs)
        self._tensors.clear()

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._joined([product.apply(x) for product in self._products])

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        return self._joined([product.apply_float32(x) for product in self._products])

    @property
    def linears(self) -> tuple[PackedProduct | PlainLinear, ...]:
        """The stored weights; there after `finalize`."""
        return tuple(product.linear for product in self._products)

    @property
    def num_bytes(self) -> int:
        return sum(product.num_bytes for product in self._products)

    def _joined(self, results: list[torch.Tensor]) -> torch.Tensor:
        assert results, f"{self._spec.name} was used before it was finalized"
        return results[0] if len(results) == 1 else torch.cat(results, dim=1)

    def _read(self, shard: Shard, part: str) -> _Part:
        held = self._tensors[shard.name]
        own = self._rank_parts[shard.name]
        bias = held.pop("bias", None) if self._spec.has_bias else None
        bias = None if bias is None else own.of_bias(bias)
        tensors = ShardTensors(self._storage.plugin, part, shard.out_features, self._spec.in_features, held)
        if tensors.is_plain:
            return _Part(ReadWeight(own.of_weight(tensors.take("weight", None))), bias)
        weight = self._format.read(tensors)
        tensors.refuse_rest()
        if weight.rounding is not None and self._storage.dtype == torch.float16:
            # Weights times a scale may lie below the numbers that float16 has.
            weight = replace(weight, rounding=replace(weight.rounding, in_units=False))
        weight = weight.in_units_of_activations().of_rank(own)
        return _Part(self._stored(weight, tensors), bias)

    def _stored(self, weight: ReadWeight, shard: ShardTensors) -> ReadWeight:
        storage = self._storage
        obstacle = "" if storage.products is None else storage.products.why_not(weight)
        is_rounded = obstacle is None and isinstance(weight.values, ScaledFloats)
        if is_rounded:
            storage.tell("rounds activations to 8-bit floats, each row by itself")
        elif weight.remark is not None:
            storage.tell(weight.remark)
        if obstacle is None:
            storage.tell(f"multiplies packed weights of {_bits(weight.values)} bits")
            return weight
        if storage.requires_packed:
            shard.refuse(f"{obstacle}; quant.weights=auto dequantizes such layers")
        kind = str(storage.dtype).removeprefix("torch.")
        storage.tell(f"dequantizes weights to {kind}{f': {obstacle}' if obstacle else ''}")
        return weight.dense()


@dataclass(frozen=True, slots=True)
class _Part:
    weight: ReadWeight
    bias: torch.Tensor | None


@final
class _Product:
    """Shards that are multiplied together. What happens to x before: it is rounded, then its columns are ordered.

    Columns that belong to no feature of this rank are multiplied by zeros, which stand behind those of x.
    """

    def __init__(self, parts: Sequence[_Part], storage: CheckpointStorage) -> None:
        weights = [part.weight for part in parts]
        biases = [part.bias for part in parts if part.bias is not None]
        bias = torch.cat([each.to(device=storage.device, dtype=storage.dtype) for each in biases]) if biases else None
        first = weights[0]
        self._rounding = first.rounding
        self._order: torch.Tensor | None = None
        self._has_gaps = False
        if first.order is not None:
            is_feature = first.order >= 0
            self._has_gaps = not bool(is_feature.all())
            self._order = torch.where(is_feature, first.order, is_feature.sum()).to(storage.device)
        self.linear: PackedProduct | PlainLinear
        if not isinstance(first.values, torch.Tensor):
            assert storage.products is not None, "packed weights without products for them"
            self.linear = storage.products.build(weights, bias)
            if self.linear.rounds_activations:
                self._rounding = None
            return
        numbers = [weight.values for weight in weights if isinstance(weight.values, torch.Tensor)]
        weight = torch.cat([each.to(device=storage.device, dtype=storage.dtype) for each in numbers])
        product = torch_ops.row_invariant_linear if storage.deterministic else torch_ops.linear
        self.linear = PlainLinear(weight, bias, product)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear.apply(self._prepared(x))

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear.apply_float32(self._prepared(x))

    @property
    def num_bytes(self) -> int:
        return self.linear.num_bytes + (0 if self._order is None else self._order.nbytes)

    def _prepared(self, x: torch.Tensor) -> torch.Tensor:
        if self._rounding is not None:
            x = self._rounding(x)
        if self._order is None:
            return x
        return (functional.pad(x, (0, 1)) if self._has_gaps else x).index_select(1, self._order)


def _is_alike(left: ReadWeight, right: ReadWeight) -> bool:
    """Whether two shards can be one product."""
    a, b = left.values, right.values
    if isinstance(a, AffineCodes) and isinstance(b, AffineCodes):
        form = (a.bits, a.group_size, a.minimum is None) == (b.bits, b.group_size, b.minimum is None)
    elif isinstance(a, ScaledFloats) and isinstance(b, ScaledFloats):
        form = (a.group_size, a.rounds_activations) == (b.group_size, b.rounds_activations)
    else:
        form = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if left.order is None or right.order is None:
        is_ordered_alike = left.order is right.order
    else:
        is_ordered_alike = torch.equal(left.order, right.order)
    return form and is_ordered_alike and left.rounding == right.rounding


def _bits(values: AffineCodes | ScaledFloats | torch.Tensor) -> int:
    return values.bits if isinstance(values, AffineCodes) else 8
