"""What an engine would take of a device's memory, worked out from the checkpoint's config before weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from tokenloom.capability_check import capability_check
from tokenloom.checkpoint.base import Checkpoint
from tokenloom.checkpoint.kv_scale_names import is_kv_scale
from tokenloom.engine_config import EngineConfig
from tokenloom.errors import CapabilityError, ConfigError
from tokenloom.executors.activation_memory import activation_peak_bytes, workspace_bytes
from tokenloom.executors.device_choice import (
    available_bytes,
    choose_device,
    choose_dtype,
    choose_max_model_len,
    choose_ops,
)
from tokenloom.executors.drafting import Drafting, DraftTarget, build_drafting
from tokenloom.executors.kv_memory import kv_groups
from tokenloom.executors.model_contexts import attention_context, model_traits
from tokenloom.interfaces.attention import AttentionConfig
from tokenloom.interfaces.cache import CacheConfig, CacheContext
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.interfaces.quant import QuantConfig, QuantContext
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.kv.memory_plan import MemoryBudget, MemoryPlan, plan_memory
from tokenloom.models.causal_lm import CausalLM
from tokenloom.models.layers import LayerFactory
from tokenloom.models.load_targets import LoadTarget
from tokenloom.models.registry import architecture_named
from tokenloom.models.skip_list import SkipList, checkpoint_skip_entries
from tokenloom.models.weight_loading import load_tensor
from tokenloom.ops.table import outline_op_table
from tokenloom.parallel import ParallelContext
from tokenloom.plugins import default_registry
from tokenloom.request import Request
from tokenloom.sampling_params import SamplingParams

__all__ = ["Batch", "MemoryForecast", "RequestLengths", "forecast_memory", "largest_batch"]


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """The requests to plan for, tokens."""

    prompt: int
    output: int

    @property
    def stored(self) -> int:
        """Tokens whose keys and values are stored at the end; the last one's never are."""
        return self.prompt + self.output - 1


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """The forecast.

    Attributes:
        device, dtype: what `auto` means.
        max_model_len: longest sequence, tokens.
        plan: blocks of each pool, and the breakdown in bytes, as the engine reports it.
        groups: KV groups.
        block_size: tokens per block.
    """

    device: str
    dtype: str
    max_model_len: int
    plan: MemoryPlan
    groups: tuple[KVGroupSpec, ...]
    block_size: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers, as the attention plugin stores them."""
        return sum(group.page_bytes for group in self.groups) // self.block_size


@dataclass(frozen=True, slots=True)
class Batch:
    """How many requests of one length fit at once.

    Attributes:
        num_requests: by memory alone.
        num_blocks: KV blocks that one request holds at its end, over all groups.
        internal: share of the slots of these blocks that hold no token.
        mean_internal: the same on average over lengths near this one: half a block less half a token for each group.
    """

    num_requests: int
    num_blocks: int
    internal: float
    mean_internal: float


def forecast_memory(config: EngineConfig, checkpoint: Checkpoint, memory_bytes: int | None) -> MemoryForecast:
    """Works out what `executor=local` would allocate. Of the model no weights are read but, if quantized, one layer of
    each shape; a drafter's own, which are few, are loaded.

    Args:
        config: of the engine.
        checkpoint: opened.
        memory_bytes: memory of the device to plan for, weights included; None takes what is free on this machine.

    Raises:
        CapabilityError: the combination cannot run.
        ConfigError, ModelError: executor is not local, or the drafter cannot be built.
        OutOfMemoryError: it does not fit, with the breakdown.
    """
    if config.executor.name != "local":
        raise ConfigError(f"executor={config.executor.name}: a memory plan is one of executor=local")
    model_config = checkpoint.config
    device = choose_device(config.model)
    dtype = choose_dtype(config.model, model_config, device)
    reasons = capability_check(config, default_registry(), traits=model_traits(model_config, device, dtype))
    if reasons:
        raise CapabilityError(reasons)
    max_model_len = choose_max_model_len(config.model, model_config)
    cache = cast(CacheConfig, config.cache.config)
    model, weights = _outline(config, checkpoint, dtype, max_model_len)
    device_bytes = available_bytes(device) if memory_bytes is None else memory_bytes
    ops = choose_ops(config.engine, device, dtype)
    target = DraftTarget(model, model_config, device, dtype, max_model_len, checkpoint.path, ops, is_outline=True)
    drafting = _drafting(config, target)
    weights += drafting.drafter.num_weight_bytes
    budget = MemoryBudget(
        weights=weights,
        activation_peak=activation_peak_bytes(config, model_config, dtype, len(drafting.drafter.needs().hidden_layers)),
        workspace=workspace_bytes(cast(SchedulerConfig, config.scheduler.config), max_model_len),
        available=device_bytes - weights,
    )
    plan = plan_memory(budget, drafting.groups, cache.block_size, cache.memory_fraction, cache.num_blocks)
    dtype_name = str(dtype).removeprefix("torch.")
    return MemoryForecast(str(device), dtype_name, max_model_len, plan, drafting.groups, cache.block_size)


def _drafting(config: EngineConfig, target: DraftTarget) -> Drafting:
    """The drafter, and all KV groups."""
    context = attention_context(config, target.config, target.device, target.dtype, target.max_model_len)
    backend = cast(AttentionConfig, config.attention.config).build(context)
    can = default_registry().get("attention", config.attention.name).info.capabilities
    return build_drafting(config, can, target, kv_groups(target.model.attention_layers(), backend))


def largest_batch(config: EngineConfig, forecast: MemoryForecast, lengths: RequestLengths, block_size: int) -> Batch:
    """The largest batch with the KV memory of `forecast`, cut into blocks of another size.

    A window group counts what its window holds at the end of a request; while a long prompt is being computed it holds
    up to a step's tokens more.
    """
    cache = cast(CacheConfig, config.cache.config)
    request = Request(
        "plan",
        [0] * lengths.prompt,
        SamplingParams(max_tokens=lengths.output),
        seed=0,
        max_total_tokens=lengths.prompt + lengths.output,
    )
    index = cache.build(CacheContext(block_size, forecast.plan.num_blocks[0], forecast.max_model_len))
    reserved, in_runs = index.reservation(request).num_blocks, index.reserves_runs
    held, used, per_pool = 0, 0, dict.fromkeys((group.pool_id for group in forecast.groups), 0)
    for group in forecast.groups:
        num_gone = 0 if group.window is None or in_runs else max(0, lengths.stored - group.window + 1) // block_size
        num_blocks = max(reserved, -(-lengths.stored // block_size) - num_gone)
        per_pool[group.pool_id] += num_blocks
        held += num_blocks
        used += lengths.stored - num_gone * block_size
    usable = {
        pool: forecast.plan.num_blocks[pool] * forecast.block_size // block_size - 1  # less the null block
        for pool in per_pool
    }
    internal = 1.0 - used / (held * block_size)
    unused = len(forecast.groups) * (block_size - 1) / 2
    return Batch(
        num_requests=min(max(0, usable[pool]) // count for pool, count in per_pool.items()),
        num_blocks=held,
        internal=internal,
        mean_internal=internal if reserved else unused / (used + unused),
    )


def _outline(
    config: EngineConfig, checkpoint: Checkpoint, dtype: torch.dtype, max_model_len: int
) -> tuple[CausalLM, int]:
    """The model without weights, and the bytes that these would take."""
    quant = cast(QuantConfig, config.quant.config)
    ops = choose_ops(config.engine, choose_device(config.model), dtype)
    # Quantizers work on the values, so theirs is the CPU; dense layers need no memory to be measured.
    context = QuantContext(
        dtype,
        torch.device("cpu"),
        checkpoint.quantization or {},
        config.engine.deterministic,
        checkpoint.stored_types,
        ops,
    )
    skip_list = SkipList(checkpoint_skip_entries(checkpoint.quantization), quant.skip)
    factory = LayerFactory(
        quant.build(context),
        skip_list,
        dtype,
        torch.device("meta"),
        ParallelContext(),
        outline_op_table(ops),
        max_model_len,
    )
    model = architecture_named(checkpoint.config.architecture).make_model(checkpoint.config, factory, None)
    skip_list.check_used()
    return model, _weight_bytes(factory.targets, checkpoint)


def _weight_bytes(targets: Sequence[LoadTarget], checkpoint: Checkpoint) -> int:
    """Fills dense layers with tensors that have a shape only. Of quantized ones, the first of each form is loaded:
    layers of one name may differ in bits or groups, which shows in what is stored of them."""
    names: dict[str, list[str]] = {}
    for name in checkpoint.tensor_names():
        if is_kv_scale(name):
            continue
        names.setdefault(name.rpartition(".")[0], []).append(name)
    known: dict[tuple[object, ...], int] = {}
    total = 0
    for target in targets:
        own = [name for part in target.parts for name in names.get(part, []) if target.accepts(name)]
        if target.load_dtype is None:
            forms = tuple((*name.split(".")[-2:], checkpoint.stored_form(name)) for name in own)
            key = (len(target.parts), forms)
            if key not in known:
                for name in own:
                    load_tensor(name, target, checkpoint)
                target.finalize()
                known[key] = target.num_bytes
            total += known[key]
            continue
        for name in own:
            shape = target.shape(name)
            assert shape is not None, f"{name}: a dense layer knows its shapes"
            target.load(name, torch.empty(shape, dtype=target.load_dtype, device="meta"))
        target.finalize()
        total += target.num_bytes
    return total
