"""Replays a workload through the real engine under a virtual clock, and sums up what came of it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from tokenloom.clock import VirtualClock
from tokenloom.engine import Engine
from tokenloom.engine_builder import build_engine
from tokenloom.engine_config import EngineConfig
from tokenloom.errors import OverloadedError, RequestError
from tokenloom.plugins import Registry
from tokenloom.request_factory import RequestFactory
from tokenloom.sampling_params import SamplingParams
from tokenloom.simulation.kv_use import KVUse
from tokenloom.simulation.measurements import LatencyRecorder, Occupancy, Rejections, SloTargets
from tokenloom.simulation.prompts import PromptMaker
from tokenloom.simulation.report import summarize
from tokenloom.simulation.request_groups import RequestGroups
from tokenloom.simulation.request_mix import traits_of
from tokenloom.simulation.timed_request import TimedRequest

__all__ = ["SimulationRun", "simulate"]


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """One run: the figures as plain data, and TTFT and TPOT of each completed request, for plots."""

    result: dict[str, Any]
    samples: dict[str, Sequence[float]]


def simulate(
    config: EngineConfig,
    requests: Sequence[TimedRequest],
    targets: SloTargets,
    *,
    registry: Registry | None = None,
    progress: Callable[[int], None] = lambda _: None,
    measures_kv_use: bool = False,
) -> SimulationRun:
    """Runs a workload once.

    Args:
        config: with executor=simulated, or another executor that lives under a virtual clock.
        requests: in order of arrival. Each generates exactly its output tokens, unless the context ends first. One that
            can never run, or finds the queue full, is counted as rejected.
        targets: what goodput is measured against; schedulers see them, too.
        registry: the installed plugins by default.
        progress: told how many requests have ended.
        measures_kv_use: also report what share of KV memory holds tokens (`kv_use`); takes a little longer.

    Raises:
        ConfigError, CapabilityError, OutOfMemoryError: the configuration cannot run.
        PluginContractError, EngineDeadError: a plugin failed.
    """
    assert requests, "a workload without requests"
    clock = VirtualClock()
    engine = build_engine(config, registry=registry, clock=clock)
    groups = RequestGroups(requests, targets)
    replay = _Replay(engine, clock, config, targets, registry, groups, KVUse() if measures_kv_use else None)
    start_s = time.perf_counter()
    try:
        with _without_old_objects():
            replay.run(requests, progress)
    finally:
        engine.close()
    wall_s = time.perf_counter() - start_s
    return SimulationRun(replay.result(requests, wall_s), dict(replay.latencies.samples()))


@contextmanager
def _without_old_objects() -> Iterator[None]:
    """Takes what exists out of the garbage collector's sight; else it walks all of it again and again.

    What was out of sight before, such as a loaded model, is so again afterwards.
    """
    had_hidden = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if had_hidden:
            gc.collect()
            gc.freeze()


@final
class _Replay:
    """One engine and the workload on its way through it."""

    def __init__(
        self,
        engine: Engine,
        clock: VirtualClock,
        config: EngineConfig,
        targets: SloTargets,
        registry: Registry | None,
        groups: RequestGroups,
        kv_use: KVUse | None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._targets = targets
        self._kv_use = kv_use
        self._groups = groups
        facts = engine.facts
        self._factory = RequestFactory(engine.limits, facts.eos_token_ids, config.engine.seed, clock, registry)
        self._prompts = PromptMaker(facts.vocab_size)
        self._params: dict[int, SamplingParams] = {}
        self._rejections = Rejections()
        self.latencies = LatencyRecorder(targets)
        self._num_usable_blocks = sum(count - 1 for count in facts.num_blocks)
        self._occupancy = Occupancy(self._num_usable_blocks)

    def run(self, requests: Sequence[TimedRequest], progress: Callable[[int], None]) -> None:
        """Steps until every request has ended. Who arrives during a step joins when it has landed."""
        engine, clock, coming = self._engine, self._clock, 0
        while coming < len(requests) or engine.has_work():
            if not engine.has_work():
                clock.advance_to(requests[coming].arrival_s)
            while coming < len(requests) and requests[coming].arrival_s <= clock.now():
                self._add(requests[coming])
                coming += 1
            self._step()
            progress(self.latencies.num_ended + self._rejections.num_total)

    def _step(self) -> None:
        engine, start_s = self._engine, self._clock.now()
        for output in engine.step():
            self._groups.take(output, self.latencies.take(output))
        self._groups.end_step()
        duration_s = self._clock.now() - start_s
        self._occupancy.take(duration_s, engine.kv_usage(), engine.num_running, engine.num_waiting)
        if self._kv_use is not None:
            self._kv_use.take(duration_s, engine)

    def _add(self, timed: TimedRequest) -> None:
        count = timed.num_output_tokens
        if count not in self._params:
            self._params[count] = SamplingParams(max_tokens=count, ignore_eos=True)
        traits = traits_of(timed, self._targets)
        request = self._factory.make(self._prompts.make(timed), self._params[count], traits)[0]
        request.arrival_time_s = timed.arrival_s
        self._groups.add(request.request_id, timed)
        try:
            self._engine.add_request(request)
        except (RequestError, OverloadedError) as error:
            self._rejections.take(request.request_id, error)
            self._groups.reject(request.request_id)
            return
        if timed.slo_factor != 1.0:
            self.latencies.relax(request.request_id, timed.slo_factor)

    def result(self, requests: Sequence[TimedRequest], wall_s: float) -> dict[str, Any]:
        """All figures, as plain data."""
        figures = summarize(
            self._engine, requests, self.latencies, self._occupancy, self._targets, self._rejections, wall_s
        )
        figures |= self._groups.summary()
        return figures if self._kv_use is None else {**figures, "kv_use": self._kv_use.summary()}
