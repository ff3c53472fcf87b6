"""How much memory the KV cache gets, and the breakdown that users see: on start with -v, and when memory runs out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenloom.errors import OutOfMemoryError
from tokenloom.interfaces.executor import KVGroupSpec

__all__ = ["MemoryBudget", "MemoryPlan", "format_bytes", "plan_memory"]


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What is known before the KV cache is allocated, in bytes.

    Attributes:
        weights: stored weights, already loaded.
        activation_peak: largest sum of live activations in one step, an estimate from above.
        workspace: persistent buffers beside weights and KV.
        available: memory of the device that is free now, with the weights loaded.
    """

    weights: int
    activation_peak: int
    workspace: int
    available: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The result: blocks per pool (the null block included), and the whole breakdown in bytes."""

    num_blocks: tuple[int, ...]
    breakdown: Mapping[str, int]


def plan_memory(
    budget: MemoryBudget, groups: Sequence[KVGroupSpec], block_size: int, memory_fraction: float, num_blocks: int | None
) -> MemoryPlan:
    """Decides how many KV blocks to allocate.

    Args:
        budget: what the rest takes.
        groups: KV groups; those with one pool_id share its blocks.
        block_size: tokens per block, for the message.
        memory_fraction: share of the available memory for the KV cache, unless num_blocks says how many.
        num_blocks: explicit number for each pool, or None.

    Raises:
        OutOfMemoryError: not even a few blocks fit, or the explicit number does not; with the breakdown.
    """
    pages = {group.pool_id: group.page_bytes for group in groups}
    block_bytes = sum(pages.values())
    spare = budget.available - budget.activation_peak - budget.workspace
    count = num_blocks if num_blocks is not None else int(budget.available * memory_fraction) // block_bytes
    breakdown = {
        "weights": budget.weights,
        "kv_cache": count * block_bytes,
        "activation_peak": budget.activation_peak,
        "workspace": budget.workspace,
        "available": budget.available,
    }
    if count < 2 or count * block_bytes > spare:
        lines = "\n".join(f"  {name:<16}{format_bytes(size):>12}" for name, size in breakdown.items())
        if num_blocks is not None:
            remedy = "lower cache.num_blocks"
        elif count * block_bytes > spare:
            remedy = "lower cache.memory_fraction, scheduler.max_num_batched_tokens or scheduler.max_num_seqs"
        else:
            remedy = "raise cache.memory_fraction"
        raise OutOfMemoryError(
            f"a KV cache of {count} blocks of {block_size} tokens ({format_bytes(block_bytes)} each) does not fit: "
            f"{format_bytes(max(0, spare))} are left for it\n{lines}\n{remedy}"
        )
    return MemoryPlan(tuple(count for _ in pages), breakdown)


def format_bytes(size: int) -> str:
    """A size for people, e.g. "1.50 GiB"."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{int(value)} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
