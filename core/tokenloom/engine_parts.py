"""What an engine is made of: built plugins and resolved settings."""

from __future__ import annotations

from collections.abc import Callable
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
    scheduler_name: str
    kv: KVManager
    draft_policy: DraftPolicy | None
    limits: SchedulerContext
    clock: Clock
    checks: str
    on_close: Callable[[], None]
