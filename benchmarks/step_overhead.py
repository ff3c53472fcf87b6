"""Milliseconds of Python that a step takes beside the model, by scheduler and by how many requests run and wait.

    python benchmarks/step_overhead.py
    python benchmarks/step_overhead.py --schedulers fcfs sjf --running 64 --steps 500 --output overhead.json

The engine, schedulers and caches are the real ones. `plan` (schedule, check, commit of the plan) and `commit` (of the
result) are taken with executor=simulated, whose own work is left out; `build` (block tables and input tensors) with a
tiny model on executor=local, under the same traffic. Together they are the Python part of a step.

A load is either so many requests that decode, a token each; or `--queue-running` requests of 8 to 24 output tokens with
`--waiting` others behind them, so that nearly every step ends some and admits others, while as many arrive. Figures are
medians over steps, and the 99th percentile of plan and commit together. They are CPU time of the engine's thread, so
they can be taken while the machine does other things; but who shares its caches makes them larger, by a tenth or two.
What is above its target is marked: 1 ms up to 64 running, 2 ms up to 256, 5 ms with up to 10,000 waiting.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tokenloom.batch import StepPlan, StepResult
from tokenloom.bench.provenance import provenance
from tokenloom.clock import Clock, MonotonicClock, VirtualClock
from tokenloom.compose import compose_config
from tokenloom.engine import Engine
from tokenloom.engine_builder import wire_engine
from tokenloom.interfaces.executor import Executor, ExecutorConfig, ExecutorContext, ModelFacts, StepHandle
from tokenloom.models.weight_loading import ignore_progress
from tokenloom.plugins import default_registry
from tokenloom.request import Request
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.tiny_checkpoint import TinyLlama

PHASES = ("plan", "build", "commit")
WARM_UP = 8


@dataclass(frozen=True)
class Load:
    """How many requests run and how many wait behind them; without the latter, those that run only decode."""

    num_running: int
    num_waiting: int

    def __str__(self) -> str:
        return f"{self.num_running} running" + (f", {self.num_waiting:,} waiting" if self.num_waiting else "")

    @property
    def target_ms(self) -> float | None:
        """Most that the Python part should take; None for loads without a target."""
        if self.num_waiting:
            return 5.0 if self.num_waiting <= 10_000 else None
        return 1.0 if self.num_running <= 64 else 2.0 if self.num_running <= 256 else None


@final
class ThreadClock(Clock):
    """CPU time of the calling thread."""

    def now(self) -> float:
        return time.thread_time()


@final
class Watch(Executor):
    """An executor between two readings of the CPU clock: at the launch, and when the result is there."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.launched_s = 0.0
        self.landed_s = 0.0
        self.build_s = 0.0

    def model_facts(self) -> ModelFacts:
        return self._inner.model_facts()

    def launch(self, plan: StepPlan) -> StepHandle:
        self.launched_s = time.thread_time()
        return WatchedHandle(self._inner.launch(plan), self)

    def close(self) -> None:
        self._inner.close()


@final
class WatchedHandle(StepHandle):
    """A step of a `Watch`."""

    def __init__(self, inner: StepHandle, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    def is_done(self) -> bool:
        return self._inner.is_done()

    def result(self) -> StepResult:
        result = self._inner.result()
        self._watch.build_s = result.times_s.get("build", 0.0)
        self._watch.landed_s = time.thread_time()
        return result


@final
class Bench:
    """One engine under one load."""

    def __init__(self, load: Load, overrides: Sequence[str], executor_clock: Clock, engine_clock: Clock) -> None:
        limits = [f"scheduler.max_num_seqs={load.num_running}", "cache.block_size=16"]
        config = compose_config([*limits, *overrides]).engine
        registry = default_registry()
        capabilities = {c.kind: registry.get(c.kind, c.name).info.capabilities for c in config.choices()}
        context = ExecutorContext(config, executor_clock, ignore_progress, capabilities, lambda _: None)
        self._watch = Watch(cast(ExecutorConfig, config.executor.config).build(context))
        self.engine: Engine = wire_engine(config, self._watch, engine_clock, registry, on_close=lambda _: None)
        self._load = load
        self._clock = engine_clock
        self._random = random.Random(0)
        self._longest = min(640, self.engine.limits.max_total_tokens)
        self._num_made = 0

    def measure(self, num_steps: int) -> dict[str, list[float]]:
        """Seconds of each phase in every step."""
        for _ in range(self._load.num_running + self._load.num_waiting):
            self._add()
        self._reach_load()
        seconds: dict[str, list[float]] = {phase: [] for phase in PHASES}
        # As `LLM` does: walking the requests that wait is no part of a step.
        gc.collect()
        gc.freeze()
        for _ in range(num_steps):
            self._refill()
            start_s = time.thread_time()
            self.engine.step()
            end_s, watch = time.thread_time(), self._watch
            seconds["plan"].append(watch.launched_s - start_s)
            seconds["build"].append(watch.build_s)
            seconds["commit"].append(end_s - watch.landed_s)
        gc.unfreeze()
        if not self._load.num_waiting:
            assert self.engine.num_running == self._load.num_running, f"{self.engine.num_running} requests run"
        self.engine.close()
        return seconds

    def _reach_load(self) -> None:
        """Steps until all prompts have been computed, or the queue moves evenly."""
        for _ in range(2_000):
            if self._load.num_waiting or not self.engine.num_waiting:
                break
            self.engine.step()
        for _ in range(WARM_UP if not self._load.num_waiting else 4 * WARM_UP):
            self._refill()
            self.engine.step()

    def _refill(self) -> None:
        while self._load.num_waiting and self.engine.num_waiting < self._load.num_waiting:
            self._add()

    def _add(self) -> None:
        """One request: all its own tokens, one of 8 tenants, of 3 priorities, perhaps with targets."""
        draw, number = self._random, self._num_made
        self._num_made += 1
        num_prompt = draw.randrange(16, max(17, self._longest * 3 // 4 if self._load.num_waiting else 33))
        num_output = draw.randrange(8, 25) if self._load.num_waiting else self._longest - num_prompt
        self.engine.add_request(
            Request(
                request_id=f"r{number}",
                prompt_token_ids=[draw.randrange(10, self.engine.facts.vocab_size) for _ in range(num_prompt)],
                params=SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True),
                seed=number,
                max_total_tokens=num_prompt + num_output,
                arrival_time_s=self._clock.now(),
                priority=draw.randrange(3),
                tenant=f"t{draw.randrange(8)}",
                ttft_slo_s=draw.choice([None, 1.0, 30.0]),
                tpot_slo_s=draw.choice([None, 0.05]),
            )
        )


def plan_and_commit(scheduler: str, cache: str, load: Load, num_steps: int) -> dict[str, list[float]]:
    """Seconds of those two phases, on the simulated executor."""
    overrides = [
        f"scheduler={scheduler}",
        f"cache={cache}",
        "executor=simulated",
        "executor.device=h100_8b",
        "cache.num_blocks=25000",
    ]
    clock = VirtualClock()
    seconds = Bench(load, overrides, clock, clock).measure(num_steps)
    return {phase: seconds[phase] for phase in ("plan", "commit")}


def build_only(folder: Path, load: Load, num_steps: int) -> dict[str, list[float]]:
    """Seconds of the build, on a tiny model."""
    overrides = [
        f"model={folder}",
        "model.dtype=float32",
        "model.device=cpu",
        "scheduler=fcfs",
        "cache.num_blocks=4096",
        "executor=local",
    ]
    seconds = Bench(load, overrides, ThreadClock(), MonotonicClock()).measure(min(num_steps, 64))
    return {"build": seconds["build"]}


def summary(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Milliseconds: the median of each phase, their sum, and the 99th percentile of what was measured together."""
    medians = {phase: 1e3 * statistics.median(seconds[phase]) for phase in PHASES}
    both = sorted(plan + commit for plan, commit in zip(seconds["plan"], seconds["commit"], strict=True))
    p99 = 1e3 * both[min(len(both) - 1, round(0.99 * (len(both) - 1)))]
    return {**medians, "python": sum(medians.values()), "p99_plan_commit": p99}


def measurements(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for each scheduler and load."""
    loads = [*(Load(count, 0) for count in args.running), *(Load(args.queue_running, n) for n in args.waiting if n)]
    with tempfile.TemporaryDirectory() as name:
        model = TinyLlama(num_layers=2, unit=64)
        folder = model.write(Path(name) / "tiny", model.weights(), {})
        builds = {load: build_only(folder, load, args.steps) for load in track(loads, "build", transient=True)}
    pairs = [(scheduler, load) for load in loads for scheduler in args.schedulers]
    for scheduler, load in track(pairs, "plan and commit", transient=True):
        seconds = plan_and_commit(scheduler, args.cache, load, args.steps) | builds[load]
        yield {
            "scheduler": scheduler,
            "num_running": load.num_running,
            "num_waiting": load.num_waiting,
            "ms": summary(seconds),
        }


def parse() -> argparse.Namespace:
    """The command line."""
    names = default_registry().names("scheduler")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedulers", nargs="+", default=names, choices=names, help="all by default")
    parser.add_argument("--cache", default="hash", help="KV cache of the simulated runs (hash)")
    parser.add_argument("--running", type=int, nargs="*", default=[8, 64, 256], help="requests that decode (8 64 256)")
    parser.add_argument("--waiting", type=int, nargs="*", default=[10_000], help="lengths of the queue (10000)")
    parser.add_argument("--queue-running", type=int, default=64, help="requests that run before the queue (64)")
    parser.add_argument("--steps", type=int, default=200, help="steps that are measured of each (200)")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    return parser.parse_args()


def main() -> None:
    args, rows = parse(), list[dict[str, Any]]()
    columns = (*PHASES, "Python part", "p99 plan + commit")
    table = Table("load", "scheduler", *columns, title="ms per step, CPU time")
    for row in measurements(args):
        rows.append(row)
        load = Load(row["num_running"], row["num_waiting"])
        cells = [f"{value:.3f}" for value in row["ms"].values()]
        if load.target_ms is not None and row["ms"]["python"] > load.target_ms:
            cells[len(PHASES)] += f" > {load.target_ms:g}"
        table.add_row(str(load), row["scheduler"], *cells)
    for column in table.columns[2:]:
        column.justify = "right"
    Console(width=120).print(table)
    if args.output is not None:
        settings = {"cache": args.cache, "num_steps": args.steps}
        result = {"settings": settings, "rows": rows, "provenance": provenance()}
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
