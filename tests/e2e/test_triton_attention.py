"""Engines with a quantized cache in Triton's interpreter; test_combinations.py has the exact ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tokenloom import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=7, ignore_eos=True)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    shared: list[int] = torch.randint(1, 250, (33,), generator=generator).tolist()
    return [shared, [*shared, 7], [5, 6, 7] * 6, [8]]


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3"])
def test_a_quantized_cache_gives_the_same_tokens_however_they_come(
    kv_dtype: str, build_llm: Callable[..., LLM], prompts: list[list[int]]
) -> None:
    """A token's scales are its own, so chunks and cached prefixes store the same bytes."""
    settings = ("attention=triton_paged", f"attention.kv_dtype={kv_dtype}", "cache.block_size=16")
    usual, other = (build_llm(*settings, *more) for more in ((), ("scheduler.max_num_batched_tokens=7",)))
    wanted, got = ([output.outputs[0].token_ids for output in llm.generate(prompts, PARAMS)] for llm in (usual, other))
    assert got == wanted
