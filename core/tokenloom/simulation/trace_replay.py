"""Makes the decisions of a trace again: the recorded arrivals, results and times, through scheduler and cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from tokenloom.batch import Preemption, SchedulePlan, StepPlan, StepResult
from tokenloom.clock import Clock
from tokenloom.compose.validation import validate
from tokenloom.engine import Engine
from tokenloom.engine_builder import wire_engine
from tokenloom.engine_config import EngineConfig
from tokenloom.errors import TokenloomError
from tokenloom.interfaces.executor import Executor, ModelFacts, StepHandle
from tokenloom.plugins import Registry, default_registry
from tokenloom.simulation.trace_compare import Divergence, first_difference
from tokenloom.tracing.records import Record, facts_from, plan_record, request_from, result_from
from tokenloom.tracing.trace_file import TraceFile

__all__ = ["TraceReplay", "replay_trace"]


@final
@dataclass(frozen=True, slots=True)
class TraceReplay:
    """How a replay went: plans that were equal, and the first one that was not."""

    num_equal: int
    divergence: Divergence | None


def replay_trace(trace: TraceFile, registry: Registry | None = None) -> TraceReplay:
    """Replays a trace up to its end or the first divergence.

    Raises:
        ConfigError, PluginError: a plugin of the trace is not installed, or knows its settings no more.
    """
    plugins = default_registry() if registry is None else registry
    config = validate({**trace.header["config"], "trace": {}}, {}, plugins, None).engine
    return _Replay(trace, config, plugins).run()


class _Diverged(TokenloomError):
    """Ends a step in the middle; the engine lets errors of this tree pass."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.detail)
        self.divergence = divergence
