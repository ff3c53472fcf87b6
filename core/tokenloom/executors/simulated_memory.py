"""KV groups and memory of a simulated device, as executor=local would have them for the model of the preset."""

from __future__ import annotations

from typing import cast

from tokenloom.executors.device_presets import DevicePreset
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.interfaces.executor import ExecutorContext, KVGroupSpec
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.kv.memory_plan import MemoryBudget, MemoryPlan, plan_memory

__all__ = ["simulated_groups", "simulated_memory"]


def simulated_groups(preset: DevicePreset, block_size: int, drafter_layers: int) -> tuple[KVGroupSpec, ...]:
    """The KV groups of a preset's model, and behind them one for the layers of a drafter, if it has any."""
    members = preset.layers_by_window
    # As executor=local has them: groups with equally many layers share a pool.
    sizes = list(dict.fromkeys(map(len, members.values())))
    page_bytes = preset.kv_bytes_per_layer * block_size
    groups = tuple(
        KVGroupSpec(
            group_id=group,
            layers=tuple(f"layers.{layer}" for layer in layers),
            window=window,
            page_bytes=len(layers) * page_bytes,
            pool_id=sizes.index(len(layers)),
        )
        for group, (window, layers) in enumerate(members.items())
    )
    if not drafter_layers:
        return groups
    layers = tuple(f"drafter.0.layers.{layer}" for layer in range(drafter_layers))
    own = KVGroupSpec(len(groups), layers, None, drafter_layers * page_bytes, len(sizes), is_drafter=True)
    return (*groups, own)


def simulated_memory(context: ExecutorContext, preset: DevicePreset, groups: tuple[KVGroupSpec, ...]) -> MemoryPlan:
    """Blocks of each pool on the device of a preset."""
    cache = cast(CacheConfig, context.config.cache.config)
    scheduler, model = cast(SchedulerConfig, context.config.scheduler.config), preset.model
    num_logits_rows = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
    budget = MemoryBudget(
        weights=model.weight_bytes,
        activation_peak=scheduler.max_num_batched_tokens * preset.activation_peak_bytes
        + 2 * 4 * num_logits_rows * model.vocab_size,
        workspace=0,
        available=preset.memory_bytes - model.weight_bytes,
    )
    return plan_memory(budget, groups, cache.block_size, cache.memory_fraction, cache.num_blocks)
