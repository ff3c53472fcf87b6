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
    if count < 2 or count * block_bytes > spare:
        raise OutOfMemoryError(_refusal(budget, count, block_bytes, block_size, is_explicit=num_blocks is not None))
    return MemoryPlan(tuple(count for _ in pages), _breakdown(budget, count * block_bytes))


def _breakdown(budget: MemoryBudget, kv_bytes: int) -> dict[str, int]:
    return {
        "weights": budget.weights,
        "kv_cache": kv_bytes,
        "activation_peak": budget.activation_peak,
        "workspace": budget.workspace,
        "available": budget.available,
    }


def _refusal(budget: MemoryBudget, count: int, block_bytes: int, block_size: int, *, is_explicit: bool) -> str:
    """What does not fit, how much is missing, and what helps."""
    if budget.available < 0:
        return (
            f"the weights do not fit: they take {format_bytes(budget.weights)} of a memory of "
            f"{format_bytes(budget.weights + budget.available)}, {format_bytes(-budget.available)} are missing; choose "
            "a smaller model or model.dtype, a quantizer such as quant=int8, or a device with more memory"
        )
    spare = budget.available - budget.activation_peak - budget.workspace
    least, most = 2 * block_bytes, spare // block_bytes
    if spare < least:
        count = max(2, count)
        remedy = (
            f"even 2 blocks lack {format_bytes(least - spare)}: lower scheduler.max_num_batched_tokens, "
            "scheduler.max_num_seqs or model.max_model_len, or take a device with more memory"
        )
    elif is_explicit:
        remedy = f"lower cache.num_blocks to at most {most}"
    elif count > most:
        remedy = "lower cache.memory_fraction, scheduler.max_num_batched_tokens or scheduler.max_num_seqs"
    else:
        remedy = "raise cache.memory_fraction"
    sizes = _breakdown(budget, count * block_bytes)
    lines = "\n".join(f"  {name:<16}{format_bytes(size):>12}" for name, size in sizes.items())
    return (
        f"a KV cache of {count} blocks of {block_size} tokens ({format_bytes(block_bytes)} each) does not fit: "
        f"{format_bytes(max(0, spare))} are left for it\n{lines}\n{remedy}"
    )


def format_bytes(size: int) -> str:
    """A size for people, e.g. "1.50 GiB"."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{int(value)} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
