"""Speed of one request, and where an engine's memory goes, to stand beside its quality."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from tokenloom.bench.throughput import run_throughput
from tokenloom.bench.workload import WorkloadItem
from tokenloom.evaluation.prompt_scores import check_length
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.llm import LLM

__all__ = ["SpeedPlan", "measure_speed", "memory_figures"]


@dataclass(frozen=True, slots=True)
class SpeedPlan:
    """One request with a prompt of random tokens, run alone.

    Attributes:
        prompt_tokens: of the prompt.
        output_tokens: that follow, greedily; two at least.
        repetitions: measured runs, after one that is not.
        seed: of the prompt.
    """

    prompt_tokens: int
    output_tokens: int
    repetitions: int
    seed: int


def measure_speed(llm: LLM, plan: SpeedPlan, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Measures prefill and decode of a request that runs alone.

    Args:
        llm: the model.
        plan: what to run.
        progress: told (runs done, runs in all).

    Returns:
        prefill_tok_s: prompt tokens / TTFT; decode_tok_s: 1 / TPOT; each the median of all repetitions, which stand in
        prefill_tok_s_runs and decode_tok_s_runs.
    """
    check_length(llm, plan.prompt_tokens + plan.output_tokens - 1, "speed_prompt_tokens and speed_output_tokens")
    draws = random.Random(plan.seed)
    prompt = [draws.randrange(llm.tokenizer.vocab_size) for _ in range(plan.prompt_tokens)]
    workload = [WorkloadItem(prompt=prompt, max_tokens=plan.output_tokens)]
    prefill: list[float] = []
    decode: list[float] = []
    for number in range(1 + plan.repetitions):
        latency = run_throughput(llm, workload, keep_cache=False, progress=lambda _: None).result["latency"]
        if number > 0:
            prefill.append(plan.prompt_tokens / latency["ttft_s"]["mean"])
            decode.append(1.0 / latency["tpot_s"]["mean"])
        progress(number + 1, 1 + plan.repetitions)
    return {
        "prefill_tok_s": median(prefill),
        "decode_tok_s": median(decode),
        "prefill_tok_s_runs": prefill,
        "decode_tok_s_runs": decode,
        "prompt_tokens": plan.prompt_tokens,
        "output_tokens": plan.output_tokens,
    }


def memory_figures(llm: LLM) -> dict[str, Any]:
    """Bytes of the weights as they are stored, of the KV cache for each token, and of activations at most."""
    facts = llm.engine.facts
    cache = llm.config.engine.cache.config
    assert isinstance(cache, CacheConfig), f"{cache} is no CacheConfig"
    page_bytes = sum({group.pool_id: group.page_bytes for group in facts.kv_groups}.values())
    return {
        "weight_bytes": facts.memory["weights"],
        "kv_bytes_per_token": page_bytes / cache.block_size,
        "activation_peak_bytes": facts.memory["activation_peak"],
    }
