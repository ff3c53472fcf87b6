"""Metrics of one engine, kept in its process and updated once a step."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, cast, final

from tokenloom.engine_output import EngineOutput
from tokenloom.engine_process.fault import FaultKind
from tokenloom.engine_process.loop_observer import LoopObserver
from tokenloom.engine_process.messages import Refused
from tokenloom.engine_process.operations import Operations
from tokenloom.errors import PluginContractError
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.observability.metric_store import MetricStore, Snapshot
from tokenloom.observability.metric_table import METRICS, RefusalReason
from tokenloom.observability.request_observer import RequestObserver
from tokenloom.request import Request

if TYPE_CHECKING:
    from tokenloom.engine import Engine
    from tokenloom.engine_config import EngineConfig

__all__ = ["EngineMetrics"]

_OTHERS = ("engine_up", "engine_restarts", "request_rejections")
"""Of these, the first two are told by front ends; the last one by both sides."""
_OF_STATS = {
    "num_preemptions": "num_preemptions",
    "recomputed_tokens": "num_recomputed_tokens",
    "swaps": "num_swaps",
    "swaps_refused": "num_refused_swaps",
    "swaps_lost": "num_lost_swaps",
    "swapped_bytes": "num_swapped_bytes",
    "spec_decode_num_drafts": "num_proposals",
    "spec_decode_num_draft_tokens": "num_draft_tokens",
    "spec_decode_num_accepted_tokens": "num_accepted_tokens",
    "step_python_seconds": "python_s",
}
"""Counters that the engine itself keeps, as metric -> field of EngineStats."""


_REFUSALS: dict[FaultKind, RefusalReason] = {
    "request": "invalid",
    "overloaded": "overloaded",
    "engine_dead": "unavailable",
    "internal": "internal",
}


@final
class EngineMetrics(LoopObserver):
    """What one engine does, as metrics. Lives in the thread that steps the engine.

    Each request that was accepted must be told of with every output that it has, or it is remembered for ever.
    """

    def __init__(self, engine: Engine, config: EngineConfig, *, has_tenant_label: bool = False) -> None:
        """`has_tenant_label` adds metrics by tenant; see `tenant_requests`."""
        self._engine = engine
        self._store = MetricStore()
        own = (name for name, metric in METRICS.items() if not metric.of_http and name not in _OTHERS[:2])
        self._store.start(own)
        self._requests = RequestObserver(self._store, has_tenant_label=has_tenant_label)
        self._before = engine.stats.snapshot()
        self._step_tokens = self._store.histogram("iteration_tokens_total")
        self._step_s = self._store.histogram("step_time_seconds")
        self._set_facts(config)

    def accepted(self, requests: Sequence[Request]) -> None:
        self._requests.arrive(requests)

    def stepped(self, outputs: Sequence[EngineOutput]) -> None:
        self._requests.take(outputs)
        stats, before = self._engine.stats, self._before
        if stats.num_steps == before.num_steps:
            return
        self._step_tokens.observe(stats.num_computed_tokens - before.num_computed_tokens)
        total_s = 0.0
        for phase, sum_s in stats.times_s.items():
            # A phase that this step did not have has added nothing.
            duration_s = sum_s - before.times_s.get(phase, 0.0)
            if duration_s > 0.0:
                self._store.histogram("step_phase_time_seconds", phase).observe(duration_s)
                total_s += duration_s
            before.times_s[phase] = sum_s
        self._step_s.observe(total_s)
        before.num_steps, before.num_computed_tokens = stats.num_steps, stats.num_computed_tokens

    def ended(self, output: EngineOutput) -> None:
        self._requests.take((output,))

    def refused(self, refused: Refused) -> None:
        self._store.add("request_rejections", 1, _REFUSALS[refused.fault.kind])

    def plan_failed(self, error: PluginContractError) -> None:
        self._store.add("plugin_contract_breaches", 1, error.plugin)

    def operations(self) -> Operations:
        """metrics: a `Snapshot`."""
        return {"metrics": lambda _: self.snapshot()}

    def snapshot(self) -> Snapshot:
        """All values as they are now, as plain data; works for a dead engine, too."""
        engine, store = self._engine, self._store
        store.set("num_requests_running", engine.num_running)
        store.set("num_requests_waiting", engine.num_waiting)
        blocks = engine.kv_usage()
        usable = sum(blocks.values()) - blocks.pop("null")
        store.set("kv_cache_usage_perc", (blocks["active"] + blocks["in_transfer"]) / usable if usable else 0.0)
        for state, count in blocks.items():
            store.set("kv_blocks", count, state)
        stats = engine.stats
        for name, field in _OF_STATS.items():
            store.set(name, getattr(stats, field))
        for position, count in stats.accepted_by_position.items():
            store.set("spec_decode_num_accepted_tokens_per_pos", count, str(position))
        return store.snapshot()

    def _set_facts(self, config: EngineConfig) -> None:
        facts = self._engine.facts
        plugins = {choice.kind: choice.name for choice in config.choices()}
        told = {**plugins, "device": facts.device, "dtype": facts.dtype, "version": version("tokenloom")}
        self._store.set("engine_info", 1, *(told[label] for label in METRICS["engine_info"].labels))
        block_size = cast(CacheConfig, config.cache.config).block_size
        self._store.set("cache_config_info", 1, str(block_size), str(sum(facts.num_blocks)))
