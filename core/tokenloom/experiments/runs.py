"""Runs one point of an experiment, simulated or on the real model, with the same figures under the same names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenloom.bench.throughput import run_throughput
from tokenloom.bench.workload import WorkloadItem
from tokenloom.compose import ComposedConfig
from tokenloom.errors import ConfigError
from tokenloom.llm import LLM
from tokenloom.simulation.measurements import SloTargets
from tokenloom.simulation.prompts import PromptMaker
from tokenloom.simulation.replay import simulate
from tokenloom.simulation.request_mix import traits_of
from tokenloom.simulation.timed_request import TimedRequest

__all__ = ["check_arrivals", "run_real", "run_simulated"]


def run_simulated(
    config: ComposedConfig, requests: Sequence[TimedRequest], targets: SloTargets, progress: Callable[[float], None]
) -> dict[str, Any]:
    """Replays the workload under a virtual clock. `progress` is told the share of it that is done."""
    done = simulate(
        config.engine,
        requests,
        targets,
        progress=lambda ended: progress(ended / len(requests)),
        measures_kv_use=True,
    )
    return done.result


def run_real(
    config: ComposedConfig, requests: Sequence[TimedRequest], targets: SloTargets, progress: Callable[[float], None]
) -> dict[str, Any]:
    """Runs the workload on the configuration's own executor, all requests at once; what `bench throughput` measures.

    Schedulers see tenants, priorities and targets, as in the simulator.
    """
    total = sum(request.num_output_tokens for request in requests)
    with LLM(config=config, show_progress=False) as llm:
        prompts = PromptMaker(llm.engine.facts.vocab_size)
        items = [
            WorkloadItem(prompt=prompts.make(request), max_tokens=request.num_output_tokens) for request in requests
        ]
        traits = [traits_of(request, targets) for request in requests]
        done = run_throughput(
            llm, items, traits=traits, keep_cache=False, progress=lambda count: progress(count / total)
        )
    result = done.result
    engine, num_prompt = result["engine"], result["num_prompt_tokens"]
    # As the simulator names them, so that one table holds both.
    return {
        **result,
        "duration_s": result["wall_s"],
        "completed_rps": (result["num_requests"] - result["num_failed"]) / result["wall_s"],
        "hit_ratio": engine["num_cached_tokens"] / num_prompt if num_prompt else 0.0,
        "num_preemptions": engine["num_preemptions"],
        "num_steps": engine["num_steps"],
    }


def check_arrivals(config: ComposedConfig, requests: Sequence[TimedRequest]) -> None:
    """Raises ConfigError where a real run would ignore the times at which requests arrive."""
    name = config.engine.executor.name
    if name != "simulated" and any(request.arrival_s > 0 for request in requests):
        raise ConfigError(
            f"executor={name} runs all requests of an experiment at once, and this workload spreads them over time; "
            "leave out rate=, use a bench .json, or choose executor=simulated"
        )
