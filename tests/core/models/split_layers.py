"""A layer as each of several ranks stores it, and what they hold and compute together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import torch

from tokenloom.interfaces.quant import LayerSpec, LinearWeights
from tokenloom.parallel import ParallelContext

Axis = Literal["output", "input"]
Tensors = Mapping[str, Mapping[str, torch.Tensor]]
"""By shard and parameter."""


def split_specs(spec: LayerSpec, axis: Axis, size: int) -> list[LayerSpec]:
    """The layer for each rank."""
    return [replace(spec, axis=axis, parallel=ParallelContext(rank, size)) for rank in range(size)]


def stored(create: Callable[[LayerSpec], LinearWeights], spec: LayerSpec, tensors: Tensors) -> LinearWeights:
    """The layer with the tensors of each shard, finalized."""
    layer = create(spec)
    for shard, parameters in tensors.items():
        for name, tensor in parameters.items():
            layer.load(shard, name, tensor)
    layer.finalize()
    return layer


def held_weight(layer: LinearWeights, num_columns: int) -> torch.Tensor:
    """fp32 [N, K] of a layer without bias."""
    return layer.apply(torch.eye(num_columns)).T


def joined(spec: LayerSpec, axis: Axis, parts: list[torch.Tensor]) -> torch.Tensor:
    """The weights [N, K] of all ranks as one; along "output" each shard's parts lie below each other."""
    if axis == "input":
        return torch.cat(parts, dim=1)
    sizes = [shard.out_features // len(parts) for shard in spec.shards]
    by_rank = [part.split(sizes) for part in parts]
    return torch.cat([rank[index] for index in range(len(sizes)) for rank in by_rank])


def check_parts(
    create: Callable[[LayerSpec], LinearWeights],
    spec: LayerSpec,
    axis: Axis,
    size: int,
    tensors: Tensors,
    *,
    tolerance: float = 1e-4,
) -> list[LinearWeights]:
    """Asserts that ranks hold the whole layer's weights among them to the bit, and compute what it does; returns their
    layers.

    Args:
        create: makes empty storage.
        spec: the whole layer, with a bias.
        axis, size: how it is split.
        tensors: of the whole layer, without biases, which are made here.
        tolerance: of products, relative to their largest.
    """
    generator = torch.Generator().manual_seed(5)
    all_tensors = {
        shard.name: {**tensors[shard.name], "bias": torch.randn(shard.out_features, generator=generator)}
        for shard in spec.shards
    }
    num_columns = spec.in_features
    whole = stored(create, spec, all_tensors)
    layers = [stored(create, each, all_tensors) for each in split_specs(spec, axis, size)]
    bare = replace(spec, has_bias=False)
    step = num_columns // size if axis == "input" else num_columns
    held = [held_weight(stored(create, each, tensors), step) for each in split_specs(bare, axis, size)]
    num_rows = spec.out_features if axis == "input" else spec.out_features // size
    assert {tuple(part.shape) for part in held} == {(num_rows, step)}
    assert torch.equal(joined(spec, axis, held), held_weight(stored(create, bare, tensors), num_columns))
    x = torch.randn(3, num_columns, generator=generator)
    wanted = whole.apply(x)  # [3, N]
    if axis == "input":
        result = torch.stack([layer.apply(part) for layer, part in zip(layers, x.split(step, dim=1))]).sum(dim=0)
    else:
        result = joined(spec, axis, [layer.apply(x).T for layer in layers]).T
    torch.testing.assert_close(result, wanted, rtol=0, atol=tolerance * float(wanted.abs().max()))
    return layers
