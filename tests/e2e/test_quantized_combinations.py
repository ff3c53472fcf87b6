"""Quantized checkpoints with every attention backend, cache and some drafters give the greedy tokens of the plain model
that has the dequantized weights, in fp32."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.models.dense_attention import Sequences
from tests.e2e.covering_array import pairwise_cases
from tests.e2e.plain_model import load_plain_model
from tests.plugins.quant.checkpoint_packing import PROMPT, Encoded, dequantized, load_model, rounded, write_pair
from tests.plugins.quant.format_encoders import (
    AWQ_SETTINGS,
    GPTQ_SETTINGS,
    ct_settings,
    encode_awq,
    encode_bnb,
    encode_fp8_blocks,
    encode_packed,
    gptq_tensors,
    int_weights,
    shuffled_groups,
)
from tokenloom import LLM, SamplingParams
from tokenloom_quant.fp8 import FP8Config

NUM_OUTPUT_TOKENS = 12
AXES: dict[str, tuple[Any, ...]] = {
    "quant": ("awq", "gptq", "compressed_tensors", "fp8", "bitsandbytes"),
    "attention": ("torch_sdpa", "naive", "native_cpu"),
    "cache": ("none", "contiguous", "hash", "radix"),
    "spec_decode": ("none", "ngram", "suffix"),
}
CASES = pairwise_cases(AXES)


def _encode_reordered(_: str, weight: torch.Tensor) -> Encoded:
    """GPTQ with groups of columns in another order, the same for all layers with as many columns."""
    groups = shuffled_groups(1, weight.shape[1], 32)
    order = groups.argsort(stable=True)
    codes, scale, zero = rounded(weight[:, order], 4, 32, symmetric=False)
    codes = codes[:, order.argsort()]
    return gptq_tensors(codes, scale, zero, 4, group_index=groups), dequantized(codes, scale, zero, groups)


FORMATS: dict[str, tuple[dict[str, Any], Callable[[str, torch.Tensor], Encoded]]] = {
    "awq": (AWQ_SETTINGS, encode_awq),
    "gptq": ({**GPTQ_SETTINGS, "desc_act": True}, _encode_reordered),
    "compressed_tensors": (
        ct_settings(int_weights(4, 64, symmetric=False)),
        lambda _, weight: encode_packed(4, 64, weight, symmetric=False),
    ),
    "fp8": (
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head"],
        },
        encode_fp8_blocks,
    ),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        lambda _, weight: encode_bnb(weight, nested=True),
    ),
}


@pytest.fixture(scope="session")
def folders_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """The tiny model in a format, and the plain one with the same weights."""

    @cache
    def make(quant: str) -> tuple[Path, Path]:
        settings, encode = FORMATS[quant]
        return write_pair(tmp_path_factory.mktemp(quant), settings, encode, tied=False, with_tokenizer=True)

    return make


def test_cases_hold_every_pair_of_options() -> None:
    for first, second in combinations(AXES, 2):
        assert {(case[first], case[second]) for case in CASES} == set(product(AXES[first], AXES[second]))
    assert len(CASES) <= 24


@pytest.mark.parametrize("case", CASES, ids=["-".join(str(value) for value in case.values()) for case in CASES])
def test_combination_equals_the_plain_model(
    case: dict[str, Any], build_llm: Callable[..., LLM], folders_of: Callable[[str], tuple[Path, Path]]
) -> None:
    quantized, dense = folders_of(case["quant"])
    overrides = [f"model={quantized}", "scheduler.max_num_batched_tokens=24"]
    overrides += [f"{kind}={case[kind]}" for kind in ("quant", "attention", "cache", "spec_decode")]
    if case["cache"] == "contiguous":
        overrides.append("cache.reserve=max_tokens")
    llm = build_llm(*overrides, "cache.block_size=4", "cache.num_blocks=120")
    prompts = [[5, 6, 7] * 5, list(range(3, 40)), [*range(3, 30), 9], [11]]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True))
    plain = load_plain_model(dense)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output.outputs[0].token_ids) == NUM_OUTPUT_TOKENS
        plain.assert_greedy(prompt, output.outputs[0].token_ids)


@pytest.mark.slow
def test_transformers_reads_the_same_from_floats_of_8_bits(folders_of: Callable[[str], tuple[Path, Path]]) -> None:
    """It dequantizes them by itself, without a library of the format's."""
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    folder = folders_of("fp8")[0]
    config = FineGrainedFP8Config(dequantize=True)
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, dtype=torch.float32)
    with torch.no_grad():
        wanted = theirs(torch.tensor([PROMPT])).logits[0].float()
    logits = Sequences(load_model(folder, FP8Config()), 1, 128).feed(PROMPT)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)
