"""From a validated config to a running engine: builds each plugin with what it may know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from tokenloom.capability_check import capability_check
from tokenloom.clock import Clock, MonotonicClock
from tokenloom.engine import Engine
from tokenloom.engine_config import EngineConfig
from tokenloom.engine_parts import EngineParts, build_scheduler
from tokenloom.engine_tap import EngineTap
from tokenloom.errors import CapabilityError
from tokenloom.interfaces.cache import CacheConfig, CacheContext, PrefixCache
from tokenloom.interfaces.executor import Executor, ExecutorConfig, ExecutorContext, ModelFacts, ModelTraits
from tokenloom.interfaces.scheduler import SchedulerConfig, SchedulerContext
from tokenloom.interfaces.spec_decode import DraftPolicy, DraftPolicyContext, SpecDecodeConfig
from tokenloom.kv.manager import KVManager
from tokenloom.models.weight_loading import ignore_progress
from tokenloom.plugins import Registry, default_registry
from tokenloom.tracing.recorder import TraceRecorder, check_trace_target
from tokenloom.tracing.tap import DecisionTap

__all__ = ["build_engine", "wire_engine"]


def build_engine(
    config: EngineConfig,
    *,
    registry: Registry | None = None,
    clock: Clock | None = None,
    progress: Callable[[str, int, int], None] = ignore_progress,
    taps: Sequence[EngineTap] = (),
) -> Engine:
    """Builds an engine: loads the model, sizes the KV cache, wires the plugins.

    Args:
        config: from `tokenloom.compose.compose_config`.
        registry: where capabilities are looked up; the installed plugins by default.
        clock: real time by default.
        progress: told (stage, done, total) while the model loads.
        taps: hear what goes by, beside the trace that the config may ask for.

    Raises:
        CapabilityError: the combination cannot run; holds every reason. Raised before weights are loaded.
        ModelError, OutOfMemoryError, ConfigError: see their docs.
    """
    check_trace_target(config.trace.file)
    plugins = default_registry() if registry is None else registry
    time = MonotonicClock() if clock is None else clock

    def check_model(traits: ModelTraits) -> None:
        reasons = capability_check(config, plugins, traits=traits)
        if reasons:
            raise CapabilityError(reasons)

    capabilities = {choice.kind: plugins.get(choice.kind, choice.name).info.capabilities for choice in config.choices()}
    context = ExecutorContext(config, time, progress, capabilities, check_model)
    executor = cast(ExecutorConfig, config.executor.config).build(context)
    facts, file = executor.model_facts(), config.trace.file
    chosen = {choice.kind: choice.name for choice in config.choices()}
    engine = wire_engine(
        config,
        executor,
        time,
        plugins,
        taps=taps if file is None else (*taps, DecisionTap(TraceRecorder(file, config, facts))),
        on_close=lambda totals: plugins.notify_engine_stopped({"plugins": chosen, "totals": totals}),
    )
    plugins.notify_engine_started(
        {"plugins": chosen, "device": facts.device, "dtype": facts.dtype, "memory": dict(facts.memory)}
    )
    return engine


def wire_engine(
    config: EngineConfig,
    executor: Executor,
    clock: Clock,
    registry: Registry,
    *,
    taps: Sequence[EngineTap] = (),
    on_close: Callable[[dict[str, object]], None],
) -> Engine:
    """Builds scheduler, KV memory and draft policy as configured, around an executor that exists.

    Args:
        config: its executor's name says which capabilities `executor` has.
        executor: a running one, or a replay's.
        clock: the engine's.
        registry: where capabilities are looked up.
        taps: hear what goes by; the last one is the next to the engine.
        on_close: told the counters when the engine is closed.
    """
    facts, flags = executor.model_facts(), registry.get("executor", config.executor.name).info.capabilities.flags
    for tap in taps:
        executor, clock = tap.executor(executor), tap.clock(clock)
    kv = _build_kv(config, facts, clock, flags)
    limits = _limits(config, facts, kv)
    return Engine(
        EngineParts(
            executor=executor,
            scheduler=build_scheduler(config.scheduler, limits, taps),
            kv=kv,
            draft_policy=_draft_policy(config, limits),
            limits=limits,
            clock=clock,
            checks=config.debug.checks,
            labels=_labels(config),
            on_close=on_close,
            taps=tuple(taps),
        )
    )


def _build_kv(config: EngineConfig, facts: ModelFacts, clock: Clock, flags: frozenset[str]) -> KVManager:
    cache = cast(CacheConfig, config.cache.config)

    def build_cache(num_blocks: int) -> PrefixCache:
        return cache.build(CacheContext(cache.block_size, num_blocks, facts.max_model_len))

    return KVManager(
        facts.kv_groups,
        facts.num_blocks,
        cache.block_size,
        facts.block_root,
        build_cache,
        clock,
        f"cache={config.cache.name}",
        cache.host_memory_bytes if "swap" in flags else 0,
        copies_blocks="block_copy" in flags,
    )


def _limits(config: EngineConfig, facts: ModelFacts, kv: KVManager) -> SchedulerContext:
    scheduler = cast(SchedulerConfig, config.scheduler.config)
    return SchedulerContext(
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=facts.max_model_len,
        block_size=kv.block_size,
        num_usable_blocks=kv.num_usable_blocks,
        preempt_mode=scheduler.preempt_mode,
        partial_preemption=scheduler.partial_preemption,
        max_queued_requests=scheduler.max_queued_requests,
        max_queued_tokens=scheduler.max_queued_tokens,
    )


def _labels(config: EngineConfig) -> dict[str, str]:
    labels = {choice.kind: f"{choice.kind}={choice.name}" for choice in config.choices()}
    policy = cast(SpecDecodeConfig, config.spec_decode.config).draft_policy()
    return {**labels, "spec_decode.policy": "no policy" if policy is None else f"spec_decode.policy={policy.name}"}


def _draft_policy(config: EngineConfig, limits: SchedulerContext) -> DraftPolicy | None:
    choice = cast(SpecDecodeConfig, config.spec_decode.config).draft_policy()
    if choice is None:
        return None
    return cast(DraftPolicy, choice.build(DraftPolicyContext(limits.max_num_seqs, limits.max_num_batched_tokens)))
