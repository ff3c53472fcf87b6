"""`tokenloom plan memory` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_llama

RunCli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    return (f"model={write_tiny_llama(tmp_path / 'model')}", "cache.num_blocks=65", "scheduler.max_num_seqs=8")


def test_a_plan_is_printed_and_written(run_cli: RunCli, words: tuple[str, ...], tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    code, out, err = run_cli("plan", "memory", *words, "prompt_tokens=100", "output_tokens=29", f"output={target}")
    assert (code, err) == (0, "")
    assert "512 B = 2 x 2 layers x 2 KV heads x 16 x 4 bytes" in out
    assert "65 of 16 tokens" in out
    # 128 stored tokens are 8 blocks of 16, and 64 are usable.
    assert "8 requests of 100 + 29 tokens" in out
    figures = json.loads(target.read_text())
    assert figures["largest_batch"] == figures["block_sizes"]["16"]["largest_batch"] == 8
    assert figures["memory_bytes"]["kv_cache"] == 65 * 16 * figures["kv_bytes_per_token"]
    assert figures["block_sizes"]["128"] == {
        "blocks_per_request": 1,
        "internal_fragmentation": 0.0,
        "mean_internal_fragmentation": pytest.approx(63.5 / 191.5),
        "largest_batch": 7,
    }


def test_the_schedulers_limit_is_named_where_it_is_lower(run_cli: RunCli, words: tuple[str, ...]) -> None:
    _, out, _ = run_cli("plan", "memory", *words, "prompt_tokens=16", "output_tokens=1")
    assert "64 requests of 16 + 1 tokens, scheduler.max_num_seqs=8 lets 8 run" in out


def test_another_devices_memory_can_be_planned_for(run_cli: RunCli, words: tuple[str, ...]) -> None:
    code, _, err = run_cli("plan", "memory", *words, "memory_bytes=1000000")
    assert code == 1
    assert "does not fit" in err


def test_a_device_too_small_for_the_weights_is_told_so(run_cli: RunCli, words: tuple[str, ...]) -> None:
    code, out, err = run_cli("plan", "memory", *words, "memory_bytes=1000")
    assert (code, out) == (1, "")
    assert "the weights do not fit: " in err
    assert "of a memory of 1000 B" in err
    assert "cache.memory_fraction" not in err
    assert " -" not in err


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("engine.seed=3", "engine.seed=3"),
        ("debug.checks=full", "debug.checks=full"),
        ("trace.file=x.jsonl", "trace.file=x.jsonl"),
        ("scheduler.max_queued_requests=4", "scheduler.max_queued_requests=4"),
        ("scheduler={max_num_seqs:2,max_queued_tokens:9}", "scheduler.max_queued_tokens in scheduler={"),
    ],
)
def test_keys_that_change_no_memory_are_refused(
    run_cli: RunCli, words: tuple[str, ...], override: str, shown: str
) -> None:
    code, out, err = run_cli("plan", "memory", *words, override)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {shown}")
    assert "no effect on `tokenloom plan memory`" in err
    assert "scheduler.max_num_batched_tokens" in err


def test_keys_and_presets_that_change_memory_are_taken(run_cli: RunCli, words: tuple[str, ...]) -> None:
    more = ("scheduler=sjf", "scheduler.victim=most_blocks", "cache=radix", "cache.eviction=fifo", "quant=int8")
    sizes = ("scheduler.max_num_batched_tokens=64", "experiment=debug", "prompt_tokens=16")
    code, _, err = run_cli("plan", "memory", *words, *more, *sizes)
    assert (code, err) == (0, "")


def test_a_file_that_cannot_be_written_is_refused_at_once(run_cli: RunCli, words: tuple[str, ...]) -> None:
    code, out, err = run_cli("plan", "memory", *words, "output=nowhere/plan.json")
    assert (code, out) == (2, "")
    assert "output=nowhere/plan.json: its folder does not exist" in err


def test_lengths_beyond_the_model_are_refused(run_cli: RunCli, words: tuple[str, ...]) -> None:
    code, _, err = run_cli("plan", "memory", *words, "prompt_tokens=500", "output_tokens=13")
    assert code == 2
    assert "exceed the 512 tokens" in err
