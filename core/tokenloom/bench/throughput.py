"""Offline throughput: a workload, all requests at once, greedy, to their full length."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.bench.latency import latency_summary
from tokenloom.bench.provenance import provenance
from tokenloom.bench.workload import WorkloadItem
from tokenloom.llm import LLM
from tokenloom.request_factory import RequestTraits
from tokenloom.results import RequestOutput
from tokenloom.sampling_params import SamplingParams

__all__ = ["ThroughputRun", "run_throughput"]


@dataclass(frozen=True, slots=True)
class ThroughputRun:
    """One run: the figures as plain data, and the output token ids in workload order."""

    result: dict[str, Any]
    token_ids: list[list[int]]


def run_throughput(
    llm: LLM,
    workload: Sequence[WorkloadItem],
    *,
    keep_cache: bool,
    progress: Callable[[int], None],
    traits: Sequence[RequestTraits] | None = None,
) -> ThroughputRun:
    """Runs a workload once.

    Args:
        llm: a loaded model.
        workload: requests; each generates exactly its max_tokens (end-of-sequence ignored) unless the context ends.
        keep_cache: leave what earlier runs cached; False empties the prefix cache first.
        progress: told the number of output tokens so far.
        traits: what policies may know of each request.
    """
    if not keep_cache:
        llm.engine.reset_prefix_cache()
    before = llm.engine.stats.snapshot()
    params = [SamplingParams(temperature=0.0, max_tokens=item.max_tokens, ignore_eos=True) for item in workload]
    start_s = time.perf_counter()
    outputs = llm.generate(
        [item.prompt for item in workload],
        params,
        traits=traits,
        on_step=lambda: progress(llm.engine.stats.num_output_tokens),
    )
    wall_s = time.perf_counter() - start_s
    return ThroughputRun(
        result=_figures(llm, outputs, wall_s, llm.engine.stats.since(before)),
        token_ids=[output.outputs[0].token_ids for output in outputs],
    )


def _figures(llm: LLM, outputs: Sequence[RequestOutput], wall_s: float, stats: dict[str, Any]) -> dict[str, Any]:
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    choices = [output.outputs[0] for output in outputs]
    num_output = sum(len(choice.token_ids) for choice in choices)
    steps = max(1, stats["num_steps"])
    return {
        "output_tok_s": num_output / wall_s,
        "total_tok_s": (num_prompt + num_output) / wall_s,
        "wall_s": wall_s,
        "num_requests": len(outputs),
        "num_failed": sum(choice.finish_reason == "error" for choice in choices),
        "num_prompt_tokens": num_prompt,
        "num_output_tokens": num_output,
        "latency": latency_summary(choice.metrics for choice in choices if choice.finish_reason != "error"),
        "python_ms_per_step": 1000 * stats["python_s"] / steps,
        "engine": stats,
        "seed": llm.config.engine.engine.seed,
        "resolved": {
            "device": llm.engine.facts.device,
            "dtype": llm.engine.facts.dtype,
            "operations": llm.engine.facts.operations,
            "weights": list(llm.engine.facts.weight_remarks),
        },
        "memory_bytes": dict(llm.engine.facts.memory),
        "config": llm.config.to_dict(),
        "provenance": provenance(),
    }
