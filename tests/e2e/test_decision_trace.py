"""A trace of a real run, in real time, makes the same decisions again without the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tokenloom import LLM, SamplingParams
from tokenloom.plugins import Registry
from tokenloom.simulation.trace_replay import replay_trace
from tokenloom.tracing.trace_file import TraceFile


@pytest.mark.parametrize("drafter", ["ngram", "draft_model"])  # without and with KV memory of its own
def test_a_real_run_replays(
    drafter: str, build_llm: Callable[..., LLM], test_registry: Registry, tiny_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    settings = ("cache=radix", "cache.eviction=priority_ttl", "cache.num_blocks=14", "cache.block_size=8")
    under_pressure = ("scheduler.preempt_mode=cheaper", "scheduler.max_num_batched_tokens=16")
    drafting = [f"spec_decode={drafter}"]
    if drafter == "draft_model":
        drafting.append(f"spec_decode.source={tiny_folder}")
    llm = build_llm(*settings, *under_pressure, *drafting, f"trace.file={path}")
    texts = [f"{'abc ' * 3}{number}" for number in range(5)]
    plain = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, logprobs=1)
    params = [plain, plain.with_changes(prompt_logprobs=2), plain.with_changes(n=2, temperature=1.0), plain, plain]
    outputs = llm.generate(texts, params)
    # Once more, so that a stop string ends it early and the cache has something to find.
    stop = outputs[0].outputs[0].text[3:6]
    llm.generate(texts[0], plain.with_changes(stop=[stop]))
    stream = llm.stream(texts[1], plain)
    next(stream)
    stream.close()
    stats = llm.engine.stats
    assert stats.num_preemptions > 0
    assert stats.num_draft_tokens > 0
    llm.close()
    ended = [record["reason"] for record in TraceFile.open(path).records() if record["event"] == "end"]
    assert ended == ["stop", "abort"]
    found = replay_trace(TraceFile.open(path), test_registry)
    assert found.divergence is None
    assert found.num_equal == stats.num_steps
