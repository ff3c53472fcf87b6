"""From a model's attention layers to KV groups, pools and allocated cache tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tokenloom.errors import OutOfMemoryError
from tokenloom.interfaces.attention import AttentionBackend, AttentionLayer
from tokenloom.interfaces.draft_memory import DraftKVGroup
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.memory_plan import MemoryPlan, format_bytes
from tokenloom.ops.huge_pages import zeroed_memory

__all__ = ["allocate_kv", "draft_groups", "kv_groups"]


def kv_groups(layers: Sequence[AttentionLayer], backend: AttentionBackend) -> tuple[KVGroupSpec, ...]:
    """The KV groups of a model, in order of group_id. Groups with equally many layers share a pool."""
    layer_bytes = backend.kv_cache_spec(1).page_bytes
    members: dict[int, list[AttentionLayer]] = {}
    for layer in layers:
        members.setdefault(layer.group_id, []).append(layer)
    sizes = list(dict.fromkeys(len(members[group]) for group in sorted(members)))
    return tuple(
        KVGroupSpec(
            group_id=group,
            layers=tuple(f"layers.{layer.layer_index}" for layer in members[group]),
            window=members[group][0].window,
            page_bytes=layer_bytes * len(members[group]),
            pool_id=sizes.index(len(members[group])),
        )
        for group in sorted(members)
    )


def draft_groups(
    needed: Sequence[DraftKVGroup], backend: AttentionBackend, target: Sequence[KVGroupSpec]
) -> tuple[KVGroupSpec, ...]:
    """The KV groups of a drafter, behind the target's, in pools of their own.

    Args:
        needed: what the drafter asks for.
        backend: made for the drafter's heads.
        target: the target's groups.
    """
    layer_bytes, num_pools = backend.kv_cache_spec(1).page_bytes, 1 + max(group.pool_id for group in target)
    sizes = list(dict.fromkeys(group.num_layers for group in needed))
    return tuple(
        KVGroupSpec(
            group_id=len(target) + index,
            layers=tuple(f"drafter.{index}.layers.{layer}" for layer in range(group.num_layers)),
            window=group.window,
            page_bytes=layer_bytes * group.num_layers,
            pool_id=num_pools + sizes.index(group.num_layers),
            lookahead=group.lookahead,
            is_drafter=True,
        )
        for index, group in enumerate(needed)
    )


def allocate_kv(
    group_of_layer: Sequence[int],
    groups: Sequence[KVGroupSpec],
    plan: MemoryPlan,
    backend: AttentionBackend,
    device: torch.device,
) -> list[list[torch.Tensor]]:
    """Allocates the cache tensors, zeroed; returns them per layer.

    The i-th layers of all groups of a pool share one set of tensors: their blocks have different ids.

    Args:
        group_of_layer: group_id of each layer.
        groups: all KV groups; an index is a group_id.
        plan: blocks of each pool.
        backend: says how a layer's blocks lie in memory.
        device: where.

    Raises:
        OutOfMemoryError: the device refused the memory.
    """
    tensors: dict[tuple[int, int], list[torch.Tensor]] = {}
    seen = [0] * len(groups)
    per_layer: list[list[torch.Tensor]] = []
    for group in group_of_layer:
        pool = groups[group].pool_id
        key = (pool, seen[group])
        seen[group] += 1
        if key not in tensors:
            spec = backend.kv_cache_spec(plan.num_blocks[pool])
            try:
                tensors[key] = [
                    _zeros(shape, dtype, device) for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
                ]
            except (RuntimeError, MemoryError) as error:
                sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in plan.breakdown.items())
                message = f"the KV cache could not be allocated ({sizes}); lower cache.num_blocks"
                raise OutOfMemoryError(message) from error
        per_layer.append(tensors[key])
    return per_layer


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A zeroed tensor. On the CPU an ample cache costs neither start-up time nor memory before it is used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return zeroed_memory(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
