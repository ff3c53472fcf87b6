"""An engine whose fcfs scheduler holds a plugin under test: what the suites of its sub-kinds run traffic on."""

from __future__ import annotations

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext
from tokenloom.plugins import default_registry
from tokenloom.testing.engine_harness import EngineHarness
from tokenloom.testing.suite import build_choice
from tokenloom.testing.workloads import Workload

__all__ = ["engine_under_fcfs"]


def engine_under_fcfs(workload: Workload, nested: PluginChoice) -> EngineHarness:
    """An engine of the workload's size, on which nothing has arrived yet; `nested` is of a sub-kind of schedulers."""
    fcfs = default_registry().get("scheduler", "fcfs").info

    def build(context: SchedulerContext) -> Scheduler:
        scheduler = build_choice(fcfs, {nested.kind.rpartition(".")[2]: nested}).build(context)
        assert isinstance(scheduler, Scheduler), f"{scheduler!r}"
        return scheduler

    return EngineHarness(
        num_blocks=(workload.num_blocks,),
        block_size=workload.block_size,
        cache=workload.cache,
        max_num_seqs=workload.max_num_seqs,
        budget=workload.budget,
        scheduler=build,
    )
