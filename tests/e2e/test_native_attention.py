"""Engines on `attention=native_cpu` where the matrix of combinations does not go: long prefixes, and its int8 cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.e2e.plain_model import load_plain_model
from tokenloom import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
INT8 = ("attention=native_cpu", "attention.kv_dtype=int8", "cache.block_size=16")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    shared: list[int] = torch.randint(1, 250, (40,), generator=generator).tolist()
    return [shared, [*shared, 7], [*shared, 9], [5, 6, 7] * 6, [8]]


@pytest.mark.parametrize(
    "overrides",
    [
        ("scheduler.max_num_batched_tokens=7",),
        ("cache=none",),
        ("spec_decode=ngram",),
        ("cache.num_blocks=9", "scheduler.preempt_mode=swap"),
        ("cache.block_size=5",),
    ],
    ids=lambda overrides: " ".join(overrides),
)
def test_an_int8_cache_gives_the_same_tokens_however_they_come(
    overrides: tuple[str, ...], build_llm: Callable[..., LLM], prompts: list[list[int]]
) -> None:
    """A token's scales are its own, so chunks, cached prefixes, drafts and swaps store the same bytes."""
    usual, other = (build_llm(*INT8, *more) for more in ((), overrides))
    wanted, got = ([output.outputs[0].token_ids for output in llm.generate(prompts, PARAMS)] for llm in (usual, other))
    assert got == wanted
    assert (other.engine.stats.num_swaps > 0) == ("scheduler.preempt_mode=swap" in overrides)


@pytest.mark.parametrize("drafter", ["none", "ngram"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_shared_prefix_gives_the_plain_models_tokens(
    threads: int, drafter: str, build_llm: Callable[..., LLM], tiny_folder: Path
) -> None:
    """Rows of several requests meet the keys of their common prefix together."""
    generator = torch.Generator().manual_seed(5)
    shared: list[int] = torch.randint(1, 250, (200,), generator=generator).tolist()
    prompts = [[*shared, *range(7, 7 + n)] for n in (1, 2, 3, 9)] + [[5, 6, 7] * 6]
    llm = build_llm(
        *("attention=native_cpu", "cache.block_size=16", f"engine.num_threads={threads}", f"spec_decode={drafter}")
    )
    outputs = llm.generate(prompts, PARAMS)
    for prompt, output in zip(prompts, outputs, strict=True):
        load_plain_model(tiny_folder).assert_greedy(prompt, output.outputs[0].token_ids)


def test_an_int8_cache_takes_less_memory(build_llm: Callable[..., LLM]) -> None:
    sizes = [
        build_llm(*INT8[::2], f"attention.kv_dtype={kind}").engine.facts.kv_groups[0].page_bytes
        for kind in ("auto", "int8")
    ]
    assert 2 * sizes[1] <= sizes[0]  # a quarter of float32, and the scales, which take their part of small heads
