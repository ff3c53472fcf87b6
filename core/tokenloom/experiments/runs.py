"""Runs one point of an experiment, simulated or on the real model, with the same figures under the same names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tokenloom.bench.attention_traffic import AttentionShapes, bytes_in_tiles, bytes_of_a_request, bytes_with_scores
from tokenloom.bench.peak_memory import PeakMemory
from tokenloom.bench.throughput import run_throughput
from tokenloom.bench.workload import WorkloadItem
from tokenloom.compose import ComposedConfig
from tokenloom.errors import ConfigError
from tokenloom.llm import LLM
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.plugins import default_registry
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

    Schedulers see tenants, priorities and targets, as in the simulator. Beside its figures there are `peak_bytes`, the
    most memory beyond what was held before the first request, `attention_bytes`, which attention moves by formula, and
    `tokens_sha256`, which is equal where all output tokens are.
    """
    total = sum(request.num_output_tokens for request in requests)
    with LLM(config=config, show_progress=False) as llm:
        prompts = PromptMaker(llm.engine.facts.vocab_size)
        items = [
            WorkloadItem(prompt=prompts.make(request), max_tokens=request.num_output_tokens) for request in requests
        ]
        traits = [traits_of(request, targets) for request in requests]
        attention_bytes = _attention_bytes(llm, requests)
        peak = PeakMemory(torch.device(llm.engine.facts.device))
        done = run_throughput(
            llm, items, traits=traits, keep_cache=False, progress=lambda count: progress(count / total)
        )
        peak_bytes = peak.read_bytes()
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
        "peak_bytes": peak_bytes,
        "attention_bytes": attention_bytes,
        "tokens_sha256": hashlib.sha256(json.dumps(done.token_ids).encode()).hexdigest()[:12],
    }


def _attention_bytes(llm: LLM, requests: Sequence[TimedRequest]) -> int:
    """What all layers move for these requests, each alone and its prompt in one step; windows are not counted out."""
    checkpoint = open_checkpoint(llm.model_path)
    try:
        model = checkpoint.config
    finally:
        checkpoint.close()
    dtype: torch.dtype = getattr(torch, llm.engine.facts.dtype)
    shapes = AttentionShapes(model.num_heads, model.num_kv_heads, model.head_dim, dtype.itemsize)
    attention = default_registry().get("attention", llm.config.engine.attention.name)
    moved = bytes_with_scores if "whole_scores" in attention.info.capabilities.flags else bytes_in_tiles
    lengths = [(request.num_prompt_tokens, request.num_output_tokens) for request in requests]
    return model.num_layers * sum(bytes_of_a_request(*pair, shapes, moved) for pair in lengths)


def check_arrivals(config: ComposedConfig, requests: Sequence[TimedRequest]) -> None:
    """Raises ConfigError where a real run would ignore the times at which requests arrive."""
    name = config.engine.executor.name
    if name != "simulated" and any(request.arrival_s > 0 for request in requests):
        raise ConfigError(
            f"executor={name} runs all requests of an experiment at once, and this workload spreads them over time; "
            "leave out rate=, use a bench .json, or choose executor=simulated"
        )
