"""From a model's attention layers to KV groups, pools and allocated cache tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from tokenloom.errors import OutOfMemoryError
from tokenloom.interfaces.attention import AttentionBackend, AttentionLayer
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.memory_plan import MemoryPlan, format_bytes

__all__ = ["allocate_kv", "kv_groups"]

_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register of a CPU."""


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


def allocate_kv(
    layers: Sequence[AttentionLayer],
    groups: Sequence[KVGroupSpec],
    plan: MemoryPlan,
    backend: AttentionBackend,
    device: torch.device,
) -> list[list[torch.Tensor]]:
    """Allocates the cache tensors, zeroed; returns them per layer.

    The i-th layers of all groups of a pool share one set of tensors: their blocks have different ids.

    Raises:
        OutOfMemoryError: the device refused the memory.
    """
    tensors: dict[tuple[int, int], list[torch.Tensor]] = {}
    seen = [0] * len(groups)
    per_layer: list[list[torch.Tensor]] = []
    for layer in layers:
        pool = groups[layer.group_id].pool_id
        key = (pool, seen[layer.group_id])
        seen[layer.group_id] += 1
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
    """A zeroed tensor. On the CPU its pages come from the system when they are first written, so an ample cache costs
    neither start-up time nor memory before it is used (`torch.zeros` touches every page)."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    buffer = torch.from_numpy(np.zeros(num_bytes + _ALIGNMENT, np.uint8))
    start = -buffer.data_ptr() % _ALIGNMENT
    return buffer[start : start + num_bytes].view(dtype).view(shape)
