"""Linear layers of quantized checkpoints: packed where the product with their codes is exact, else dequantized."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch

from tokenloom.interfaces.quant import LayerSpec, LinearWeights, Shard
from tokenloom.models.skip_list import part_names
from tokenloom.ops import torch_ops
from tokenloom.ops.packed_linear import PlainLinear
from tokenloom.ops.weight_memory import WeightMemory
from tokenloom_quant.affine_format import CheckpointFormat, ShardTensors
from tokenloom_quant.affine_weight import ReadWeight
from tokenloom_quant.low_bit.affine_codes import AffineCodes, joined_codes
from tokenloom_quant.low_bit.product import LowBitProduct

__all__ = ["CheckpointLinear", "CheckpointStorage"]

_GROUP_MULTIPLE = 8  # of the packed product
_MAX_PACKED_COLUMNS = 1 << 16


@dataclass(frozen=True, slots=True)
class CheckpointStorage:
    """What all layers of a model share.

    Attributes:
        plugin: the quant plugin's name.
        dtype: of activations.
        device: where weights live.
        deterministic: results of a row must not depend on the other rows.
        is_packed: whether codes are multiplied as they are, where that can be; else all are dequantized.
        requires_packed: whether a layer that cannot be is an error.
        memory: where packed weights go.
        told: what was said already.
    """

    plugin: str
    dtype: torch.dtype
    device: torch.device
    deterministic: bool
    is_packed: bool
    requires_packed: bool = False
    memory: WeightMemory = field(default_factory=WeightMemory)
    told: set[str] = field(default_factory=set)

    def tell(self, what: str) -> None:
        """Says once, on stderr, how weights are stored."""
        if what not in self.told:
            self.told.add(what)
            print(f"tokenloom: quant={self.plugin} {what}", file=sys.stderr, flush=True)


@final
class CheckpointLinear(LinearWeights):
    """Shards that agree in form are one product, others have their own; a bias [N] where the spec has one."""

    def __init__(self, spec: LayerSpec, weight_format: CheckpointFormat, storage: CheckpointStorage) -> None:
        self._spec = spec
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
    def linears(self) -> tuple[LowBitProduct | PlainLinear, ...]:
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
        bias = held.pop("bias", None) if self._spec.has_bias else None
        tensors = ShardTensors(self._storage.plugin, part, shard.out_features, self._spec.in_features, held)
        if tensors.is_plain:
            return _Part(ReadWeight(tensors.take("weight", None)), bias)
        weight = self._format.read(tensors)
        tensors.refuse_rest()
        if weight.rounding is not None and self._storage.dtype == torch.float16:
            # Weights times a scale may lie below the numbers that float16 has.
            weight = replace(weight, rounding=replace(weight.rounding, in_units=False))
        return _Part(self._stored(weight.in_units_of_activations(), tensors), bias)

    def _stored(self, weight: ReadWeight, shard: ShardTensors) -> ReadWeight:
        if weight.remark is not None:
            self._storage.tell(weight.remark)
        obstacle = _why_not_packed(weight.values)
        if obstacle is None and self._storage.is_packed:
            self._storage.tell(f"multiplies packed weights of {_bits(weight.values)} bits")
            return weight
        if self._storage.requires_packed:
            shard.refuse(f"{obstacle}; quant.weights=auto dequantizes such layers")
        kind = str(self._storage.dtype).removeprefix("torch.")
        self._storage.tell(f"dequantizes weights to {kind}{f': {obstacle}' if self._storage.is_packed else ''}")
        return weight.dense()


@dataclass(frozen=True, slots=True)
class _Part:
    weight: ReadWeight
    bias: torch.Tensor | None


@final
class _Product:
    """Shards that are multiplied together. What happens to x before: it is rounded, then its columns are ordered."""

    def __init__(self, parts: Sequence[_Part], storage: CheckpointStorage) -> None:
        weights = [part.weight for part in parts]
        biases = [part.bias for part in parts if part.bias is not None]
        bias = torch.cat([each.to(device=storage.device, dtype=storage.dtype) for each in biases]) if biases else None
        first = weights[0]
        self._rounding, self._order = first.rounding, first.order
        codes = [weight.values for weight in weights if isinstance(weight.values, AffineCodes)]
        numbers = [weight.values for weight in weights if isinstance(weight.values, torch.Tensor)]
        self.linear: LowBitProduct | PlainLinear
        if codes:
            # With one scale a row the product rounds rows by itself.
            rounds = first.rounding is not None and first.rounding.scale is None and codes[0].scale.shape[1] == 1
            self._rounding = None if rounds else first.rounding
            self.linear = LowBitProduct(joined_codes(codes), bias, rounds_activations=rounds, memory=storage.memory)
        else:
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
        return x if self._order is None else x.index_select(1, self._order)


def _is_alike(left: ReadWeight, right: ReadWeight) -> bool:
    """Whether two shards can be one product."""
    a, b = left.values, right.values
    if isinstance(a, AffineCodes) and isinstance(b, AffineCodes):
        form = (a.bits, a.group_size, a.minimum is None) == (b.bits, b.group_size, b.minimum is None)
    else:
        form = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if left.order is None or right.order is None:
        is_ordered_alike = left.order is right.order
    else:
        is_ordered_alike = torch.equal(left.order, right.order)
    return form and is_ordered_alike and left.rounding == right.rounding


def _bits(values: AffineCodes | torch.Tensor) -> int:
    return values.bits if isinstance(values, AffineCodes) else 8 * values.element_size()


def _why_not_packed(values: AffineCodes | torch.Tensor) -> str | None:
    """Why the product with codes cannot take this weight, or None."""
    if isinstance(values, torch.Tensor):
        return "no product takes this format packed"
    num_columns = values.codes.shape[1]
    if num_columns > _MAX_PACKED_COLUMNS:
        return f"packed products have at most {_MAX_PACKED_COLUMNS} input features, this layer has {num_columns}"
    if values.scale.shape[1] > 1 and values.group_size % _GROUP_MULTIPLE:
        return f"packed products need groups of a multiple of {_GROUP_MULTIPLE}, this layer has {values.group_size}"
    return None
