"""Engines on the Triton backends, in Triton's interpreter: the plain model's greedy tokens, whatever a step holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.e2e.plain_model import load_plain_model
from tokenloom import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    shared: list[int] = torch.randint(1, 250, (33,), generator=generator).tolist()
    return [shared, [*shared, 7], [5, 6, 7] * 6, [8]]


@pytest.mark.parametrize("attention", ["triton_paged", "triton_flash"])
@pytest.mark.parametrize(
    "overrides",
    [
        ("cache=none", "cache.block_size=16"),
        ("cache=radix", "cache.block_size=4", "scheduler.max_num_batched_tokens=7"),
        ("cache=hash", "cache.block_size=1", "spec_decode=ngram"),
        ("cache=hash", "cache.block_size=4", "cache.num_blocks=19", "scheduler.preempt_mode=swap"),
    ],
    ids=lambda overrides: " ".join(overrides),
)
def test_tokens_are_those_of_the_plain_model(
    attention: str,
    overrides: tuple[str, ...],
    build_llm: Callable[..., LLM],
    tiny_folder: Path,
    prompts: list[list[int]],
) -> None:
    llm = build_llm(f"attention={attention}", *overrides)
    outputs = llm.generate(prompts, PARAMS)
    for prompt, output in zip(prompts, outputs, strict=True):
        load_plain_model(tiny_folder).assert_greedy(prompt, output.outputs[0].token_ids)
    assert (llm.engine.stats.num_swaps > 0) == ("scheduler.preempt_mode=swap" in overrides)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3"])
def test_a_quantized_cache_gives_the_same_tokens_however_they_come(
    kv_dtype: str, build_llm: Callable[..., LLM], prompts: list[list[int]]
) -> None:
    """A token's scales are its own, so chunks and cached prefixes store the same bytes."""
    settings = ("attention=triton_paged", f"attention.kv_dtype={kv_dtype}", "cache.block_size=16")
    usual, other = (build_llm(*settings, *more) for more in ((), ("scheduler.max_num_batched_tokens=7",)))
    wanted, got = ([output.outputs[0].token_ids for output in llm.generate(prompts, PARAMS)] for llm in (usual, other))
    assert got == wanted
