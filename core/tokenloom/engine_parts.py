"""What an engine is made of: built plugins and resolved settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokenloom.clock import Clock
from tokenloom.interfaces.executor import Executor
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext
from tokenloom.interfaces.spec_decode import DraftPolicy
from tokenloom.kv.manager import KVManager

__all__ = ["EngineParts"]


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
