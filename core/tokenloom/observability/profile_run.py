"""Profiles an engine offline: runs a workload for some steps, times their phases, and sums them up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, final

import numpy as np

from tokenloom.bench.provenance import provenance
from tokenloom.bench.workload import WorkloadItem
from tokenloom.clock import MonotonicClock
from tokenloom.errors import ConfigError
from tokenloom.llm import LLM
from tokenloom.observability.chrome_trace import chrome_trace
from tokenloom.observability.op_profile import OpProfile
from tokenloom.observability.timeline import StepRecord, StepTimeline
from tokenloom.request import Request
from tokenloom.request_factory import RequestFactory
from tokenloom.sampling_params import SamplingParams
from tokenloom.text.output_processor import OutputProcessor

__all__ = ["PhaseSummary", "Profiler", "summarize"]


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """One phase over all steps that had it, seconds. `is_inner`: it lies within the launch."""

    name: str
    is_inner: bool
    num_steps: int
    total_s: float
    p50_s: float
    p99_s: float


@final
class Profiler:
    """What a profile needs: `taps` go into the model that is built, `run` profiles it.

    Example:
        >>> profiler = Profiler()
        >>> with LLM(taps=profiler.taps) as llm:  # doctest: +SKIP
        ...     trace = profiler.run(llm, [WorkloadItem(prompt=[1, 2, 3], max_tokens=8)], num_steps=5)
    """

    def __init__(self, *, with_ops: bool = False) -> None:
        """`with_ops` records torch's operations and names decoder layers, too, which slows steps down."""
        self._ops = OpProfile() if with_ops else None
        self.timeline = StepTimeline(annotate=None if self._ops is None else self._ops.annotate)

    @property
    def taps(self) -> tuple[StepTimeline]:
        """For `LLM(taps=...)`."""
        return (self.timeline,)

    @property
    def steps(self) -> Sequence[StepRecord]:
        """What was recorded; fewer steps than asked for where the workload ended before."""
        return self.timeline.steps

    def run(
        self,
        llm: LLM,
        workload: Sequence[WorkloadItem],
        *,
        num_steps: int,
        num_skipped: int = 0,
        progress: Callable[[int], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Profiles a model that was built with `taps`.

        Args:
            llm: nothing else may run on it.
            workload: all requests at once, greedy, to their full length.
            num_steps: how many steps to record.
            num_skipped: steps to run before that.
            progress: told how many steps have run.

        Returns:
            A Chrome trace, as plain data.

        Raises:
            ConfigError: the workload ended before a step was recorded.
            RequestError: a request can never run.
        """
        requests = _requests(llm, workload)
        processor = OutputProcessor(llm.tokenizer, llm.engine.truncate)
        llm.engine.add_requests(requests)
        try:
            for request in requests:
                processor.add(request)
            num_done = 0
            while llm.engine.has_work() and num_done < num_skipped + num_steps:
                if num_done == num_skipped:
                    self._start(num_steps)
                self._step(llm, processor)
                num_done += 1
                progress(num_done)
        finally:
            for request in requests:
                llm.engine.abort(request.request_id)
        if not self.steps:
            raise ConfigError(
                f"skip={num_skipped}: the workload ended after {num_done} steps; skip fewer, or give it more to do"
            )
        ops = [] if self._ops is None else self._ops.stop()
        return chrome_trace(self.steps, {"config": llm.config.to_dict(), "provenance": provenance()}, ops)

    def _start(self, num_steps: int) -> None:
        if self._ops is not None:
            self._ops.start()
        self.timeline.start(num_steps)

    def _step(self, llm: LLM, processor: OutputProcessor) -> None:
        outputs = llm.engine.step()
        self.timeline.end_step(llm.engine)
        start_s = self.timeline.now()
        processor.process(outputs)
        self.timeline.note("detokenize", start_s)


def summarize(steps: Sequence[StepRecord]) -> list[PhaseSummary]:
    """The phases in the order in which they come, those within the launch behind it; last, the whole step."""
    durations: dict[tuple[str, bool], list[float]] = {}
    offsets: dict[tuple[str, bool], list[float]] = {}
    for step in steps:
        for phase in step.phases:
            key = (phase.name, phase.is_inner)
            durations.setdefault(key, []).append(phase.end_s - phase.start_s)
            offsets.setdefault(key, []).append(phase.start_s - step.start_s)
    ordered = sorted(durations, key=lambda key: (fmean(offsets[key]), key[1]))
    whole = _summary("step", False, [step.end_s - step.start_s for step in steps])
    return [*(_summary(*key, durations[key]) for key in ordered), whole]


def _summary(name: str, is_inner: bool, durations_s: Sequence[float]) -> PhaseSummary:
    p50_s, p99_s = np.percentile(durations_s, (50, 99)).tolist()
    return PhaseSummary(name, is_inner, len(durations_s), sum(durations_s), p50_s, p99_s)


def _requests(llm: LLM, workload: Sequence[WorkloadItem]) -> list[Request]:
    facts, seed = llm.engine.facts, llm.config.engine.engine.seed
    factory = RequestFactory(llm.engine.limits, facts.eos_token_ids, seed, MonotonicClock())
    made: list[Request] = []
    for item in workload:
        params = SamplingParams(temperature=0.0, max_tokens=item.max_tokens, ignore_eos=True)
        made += factory.make(item.prompt, params)
    return made
