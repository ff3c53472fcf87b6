"""What an engine is made of: built plugins and resolved settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from tokenloom.clock import Clock
from tokenloom.engine_tap import EngineTap
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.executor import Executor
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext
from tokenloom.interfaces.spec_decode import DraftPolicy
from tokenloom.kv.manager import KVManager

__all__ = ["EngineParts", "build_scheduler"]


def build_scheduler(choice: PluginChoice, limits: SchedulerContext, taps: Sequence[EngineTap]) -> Scheduler:
    """Builds a scheduler behind the taps; the last of these is the next to the engine."""
    scheduler = cast(Scheduler, choice.build(limits))
    for tap in taps:
        scheduler = tap.scheduler(scheduler)
    return scheduler


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The built plugins and settings of one engine; `engine_builder.build_engine` makes them from a config."""

    executor: Executor
    scheduler: Scheduler
    kv: KVManager
    draft_policy: DraftPolicy | None
    limits: SchedulerContext
    clock: Clock
    checks: str
    labels: Mapping[str, str]
    """kind -> "kind=name" for scheduler, cache and spec_decode.policy; names plugins in errors."""
    on_close: Callable[[dict[str, object]], None]
    taps: tuple[EngineTap, ...] = ()
    """What hears the executor, the clock and the scheduler, and any scheduler that takes over."""

    def with_scheduler(self, choice: PluginChoice) -> EngineParts:
        """The same parts with another scheduler, which the taps hear as they heard the one before."""
        scheduler = build_scheduler(choice, self.limits, self.taps)
        return replace(self, scheduler=scheduler, labels={**self.labels, "scheduler": f"{choice.kind}={choice.name}"})
