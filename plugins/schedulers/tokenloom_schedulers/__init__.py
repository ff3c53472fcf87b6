"""Built-in schedulers: who gets how many tokens in a step; who gives memory back, and for whom it will last."""

from __future__ import annotations

from tokenloom.interfaces.contract import Capabilities, PluginInfo
from tokenloom.plugins import hookimpl

__all__ = ["tokenloom_plugins"]


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the plugins of this package; the modules behind them load when chosen."""
    return [*_SCHEDULERS, *_VICTIMS, *_ADMISSIONS]


_SCHEDULERS = (
    PluginInfo(
        kind="scheduler",
        name="fcfs",
        config="tokenloom_schedulers.fcfs:FcfsConfig",
        contract=(1, 2),
        summary="First come, first served: continuous batching with chunked prefill and recompute preemption.",
        sub_kinds={"scheduler.victim": "last_in", "scheduler.admission": "optimistic"},
    ),
    PluginInfo(
        kind="scheduler",
        name="priority",
        config="tokenloom_schedulers.priority:PriorityConfig",
        contract=(1, 3),
        summary="Urgent requests first, with ageing; they take the places of less urgent ones that run.",
        sub_kinds={"scheduler.victim": "lowest_priority", "scheduler.admission": "optimistic"},
    ),
    PluginInfo(
        kind="scheduler",
        name="sjf",
        config="tokenloom_schedulers.sjf:SjfConfig",
        contract=(1, 3),
        summary="Least predicted work first, with ageing by response ratio.",
        sub_kinds={"scheduler.victim": "last_in", "scheduler.admission": "optimistic"},
    ),
    PluginInfo(
        kind="scheduler",
        name="fair_share",
        config="tokenloom_schedulers.fair_share:FairShareConfig",
        contract=(1, 3),
        summary="Equal service for tenants, by virtual token counters and weights.",
        sub_kinds={"scheduler.victim": "last_in", "scheduler.admission": "optimistic"},
    ),
    PluginInfo(
        kind="scheduler",
        name="deadline",
        config="tokenloom_schedulers.deadline:DeadlineConfig",
        contract=(1, 3),
        summary="Least slack first, from targets for TTFT and TPOT; hopeless requests last.",
        sub_kinds={"scheduler.victim": "last_in", "scheduler.admission": "optimistic"},
    ),
    PluginInfo(
        kind="scheduler",
        name="prefix_affinity",
        config="tokenloom_schedulers.prefix_affinity:PrefixAffinityConfig",
        contract=(1, 3),
        summary="Longest cached prefix first, with bounded overtaking.",
        sub_kinds={"scheduler.victim": "last_in", "scheduler.admission": "optimistic"},
    ),
    PluginInfo(
        kind="scheduler",
        name="slo_adaptive",
        config="tokenloom_schedulers.slo_adaptive:SloAdaptiveConfig",
        contract=(1, 2),
        summary="First come, first served, with budgets that keep p99 of the step time under a target.",
        capabilities=Capabilities(flags=frozenset({"spare_budget"})),
        sub_kinds={"scheduler.victim": "last_in", "scheduler.admission": "optimistic"},
    ),
    PluginInfo(
        kind="scheduler",
        name="static_batch",
        config="tokenloom_schedulers.static_batch:StaticBatchConfig",
        contract=(1, 3),
        summary="The classical baseline: nobody joins a batch until all of it have ended.",
        sub_kinds={"scheduler.victim": "last_in", "scheduler.admission": "optimistic"},
    ),
)

_VICTIMS = (
    PluginInfo(
        kind="scheduler.victim",
        name="last_in",
        config="tokenloom_schedulers.last_in:LastInConfig",
        contract=(1, 0),
        summary="Preempts the request that was admitted last.",
    ),
    PluginInfo(
        kind="scheduler.victim",
        name="lowest_priority",
        config="tokenloom_schedulers.lowest_priority:LowestPriorityConfig",
        contract=(1, 0),
        summary="Preempts the least urgent request.",
    ),
    PluginInfo(
        kind="scheduler.victim",
        name="least_recompute",
        config="tokenloom_schedulers.least_recompute:LeastRecomputeConfig",
        contract=(1, 0),
        summary="Preempts the request with the fewest computed tokens to lose.",
    ),
    PluginInfo(
        kind="scheduler.victim",
        name="most_blocks",
        config="tokenloom_schedulers.most_blocks:MostBlocksConfig",
        contract=(1, 0),
        summary="Preempts the request with the most KV blocks.",
    ),
)

_ADMISSIONS = (
    PluginInfo(
        kind="scheduler.admission",
        name="optimistic",
        config="tokenloom_schedulers.optimistic:OptimisticConfig",
        contract=(1, 0),
        summary="Admits whoever fits now; preemption helps where memory runs out.",
    ),
    PluginInfo(
        kind="scheduler.admission",
        name="reserve_all",
        config="tokenloom_schedulers.reserve_all:ReserveAllConfig",
        contract=(1, 0),
        summary="Admits who fits even if all requests grow to their caps, so that nobody is preempted.",
    ),
    PluginInfo(
        kind="scheduler.admission",
        name="peak_memory",
        config="tokenloom_schedulers.peak_memory:PeakMemoryConfig",
        contract=(1, 0),
        summary="Admits who fits at the predicted peak of memory, as requests grow and end.",
    ),
)
