"""Every lossless combination of plugins gives the plain model's greedy tokens, in fp32, on a tiny model.

CI runs a covering array; `pytest tests/e2e/test_combinations.py --full-matrix` runs the full product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.covering_array import full_product, once_each_cases, pairwise_cases
from tests.e2e.plain_model import PlainModel, load_plain_model
from tests.e2e.preempting_scheduler import PreemptingConfig
from tests.e2e.rounded_models import write_in_blocks, write_rounded
from tests.plugins.spec_decode.tiny_eagle import TinyEagle
from tests.plugins.spec_decode.tiny_eagle3 import TinyEagle3
from tests.plugins.spec_decode.tiny_medusa import TinyMedusa
from tests.plugins.spec_decode.tiny_mtp import TinyMtp
from tokenloom import LLM, SamplingParams
from tokenloom.interfaces.contract import KINDS, PluginChoice
from tokenloom.plugins import default_registry

NUM_OUTPUT_TOKENS = 19
AXES: dict[str, tuple[Any, ...]] = {
    "attention": ("torch_sdpa", "naive", "native_cpu"),
    "cache": ("none", "contiguous", "hash", "radix"),
    "spec_decode": (
        "none",
        "ngram",
        "ngram/rejection",  # with another verifier than the default one
        "suffix",
        "self_spec",
        "synthetic",
        "medusa",
        "draft_model",
        "eagle",
        "eagle3",
        "mtp",
    ),
    "quant": ("none", "int8", "int8_dynamic", "int4", "gguf"),
    "executor": ("local",),
    "scheduler": (
        "fcfs",
        "priority",
        "sjf",
        "fair_share",
        "deadline",
        "prefix_affinity",
        "slo_adaptive",
        "static_batch",
        "preempting",
    ),
    "admission": ("optimistic", "reserve_all", "peak_memory"),
    "block_size": (1, 4, 16),
    "budget": (1, 7, 64),
    "num_blocks": ("tight", "ample"),
    "preempt_mode": ("recompute", "swap", "cheaper"),
}
WITHOUT_A_MODEL = {"simulated", "auto"}
"""Executors whose tokens nothing can be compared with."""
OF_CHECKPOINTS = {"awq", "gptq", "compressed_tensors", "fp8", "bitsandbytes"}
"""Quantizers of checkpoints in forms of their own: test_quantized_combinations.py has these."""
INTERPRETED_AXES: dict[str, tuple[Any, ...]] = AXES | {
    "attention": ("triton_paged", "triton_flash"),
    "spec_decode": ("none", "ngram", "medusa", "draft_model"),
    "quant": ("none", "int8"),
    "scheduler": ("fcfs", "priority", "slo_adaptive", "preempting"),
    "budget": (7, 64),
}
"""Attention that takes Triton's interpreter too long for all pairs: each backend meets each of these options."""
ELSEWHERE = WITHOUT_A_MODEL | OF_CHECKPOINTS | set(INTERPRETED_AXES["attention"])
SETTINGS = {"admission", "block_size", "budget", "num_blocks", "preempt_mode"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        make = full_product if metafunc.config.getoption("--full-matrix") else pairwise_cases
        cases = [*make(AXES), *once_each_cases(INTERPRETED_AXES)]
        metafunc.parametrize("case", cases, ids=["-".join(str(v) for v in case.values()) for case in cases])


def test_axes_name_every_installed_plugin() -> None:
    """A new plugin must join the matrix."""
    assert set(AXES) - SETTINGS == set(KINDS)
    for kind in KINDS:
        assert set(default_registry().names(kind)) - ELSEWHERE <= set(AXES[kind]), kind
    assert set(default_registry().names("scheduler.admission")) == set(AXES["admission"])


def test_cases_hold_every_pair_of_options_and_are_few() -> None:
    cases = pairwise_cases(AXES)
    for first, second in combinations(AXES, 2):
        assert {(case[first], case[second]) for case in cases} == set(product(AXES[first], AXES[second]))
    assert len(cases) <= 115
    interpreted = once_each_cases(INTERPRETED_AXES)
    for name, options in INTERPRETED_AXES.items():
        met = {(case["attention"], case[name]) for case in interpreted}
        assert name == "attention" or met == set(product(INTERPRETED_AXES["attention"], options))
    assert len(interpreted) == 8


def test_combination_equals_the_plain_model(
    case: dict[str, Any],
    build_llm: Callable[..., LLM],
    plain_model_of: Callable[[str], PlainModel],
    tiny_gguf: Path,
    drafter_settings: Callable[[str], list[str]],
) -> None:
    block_size = case["block_size"]
    is_interpreted = case["attention"] in INTERPRETED_AXES["attention"]  # there is less to do, then
    prompts = _prompts(block_size)[:: 3 if is_interpreted else 1]
    num_output_tokens = 8 if is_interpreted else NUM_OUTPUT_TOKENS
    longest = max(len(prompt) for prompt in prompts) + num_output_tokens
    # Tight: room for the longest request and half as much again, so that requests preempt one another.
    tight = 1 + -(-longest * 3 // (2 * block_size))
    num_blocks = tight if case["num_blocks"] == "tight" else 1500 // block_size + 40
    drafter, _, verifier = case["spec_decode"].partition("/")
    plugins = {kind: case[kind] for kind in KINDS if case[kind] != "preempting"} | {"spec_decode": drafter}
    overrides = [f"{kind}={name}" for kind, name in plugins.items()]
    overrides += drafter_settings(drafter)
    if verifier:
        overrides.append(f"spec_decode.verifier={verifier}")
    if case["cache"] == "contiguous":
        overrides.append("cache.reserve=max_tokens")
    limits = {"max_num_batched_tokens": case["budget"], "max_num_seqs": 6, "preempt_mode": case["preempt_mode"]}
    scheduler = None
    if case["scheduler"] == "preempting":
        scheduler = PluginChoice("scheduler", "preempting", PreemptingConfig(**limits))
    else:
        overrides += [f"scheduler.{name}={value}" for name, value in limits.items()]
        overrides.append(f"scheduler.admission={case['admission']}")
    if case["quant"] == "gguf":
        overrides.append(f"model={tiny_gguf}")
        if drafter == "draft_model":
            overrides.append(f"spec_decode.source={tiny_gguf}")  # with the same vocabulary
    llm = build_llm(*overrides, f"cache.block_size={block_size}", f"cache.num_blocks={num_blocks}", scheduler=scheduler)
    params = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)
    outputs = llm.generate(prompts, params)
    plain = plain_model_of(case["quant"])
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output.outputs[0].token_ids) == num_output_tokens
        plain.assert_greedy(prompt, output.outputs[0].token_ids)
    usage = llm.engine.kv_usage()
    assert usage["active"] == 0
    num_pools = len({group.pool_id for group in llm.engine.facts.kv_groups})  # a drafter's own layers have another one
    assert usage["free"] + usage["cached"] == num_pools * (num_blocks - 1)
    stats = llm.engine.stats
    # Who reserved everything, or was admitted for all of it, is not preempted for want of memory.
    is_reserved = case["cache"] == "contiguous" or case["admission"] == "reserve_all"
    is_crowded = case["num_blocks"] == "tight" and case["budget"] == 64 and not is_interpreted
    if case["scheduler"] == "preempting":
        pass
    elif is_reserved:
        assert stats.num_preemptions == 0
    elif is_crowded and case["admission"] == "optimistic":
        assert stats.num_preemptions > 0
    if case["preempt_mode"] == "swap":
        assert (stats.num_refused_swaps, stats.num_lost_swaps) == (0, 0)
        assert stats.num_swaps == stats.num_preemptions
    # With a budget of one token only one request runs at a time, and it must stay.
    if case["scheduler"] == "preempting" and case["budget"] > 1:
        assert llm.engine.stats.num_preemptions >= (1 if is_interpreted else len(prompts))


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("cache", ["none", "hash"])
def test_preemption_at_every_output_position(
    cache: str, mode: str, build_llm: Callable[..., LLM], tiny_folder: Path
) -> None:
    config = PreemptingConfig(max_num_seqs=6, preempt_mode=mode)  # type: ignore[arg-type]
    scheduler = PluginChoice("scheduler", "preempting", config)
    llm = build_llm(f"cache={cache}", "cache.block_size=4", scheduler=scheduler)
    prompts = _prompts(4)[:3]
    # The first request outlives the others, which are preempted at each of their output lengths.
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (80, 24, 24)]
    outputs = llm.generate(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        load_plain_model(tiny_folder).assert_greedy(prompt, output.outputs[0].token_ids)
    assert sorted(length for _, length in config.log) == sorted([*range(1, 24), *range(1, 24)])
    assert (llm.engine.stats.num_recomputed_tokens > 0) == (mode == "recompute")
    assert llm.engine.stats.num_swaps == (len(config.log) if mode == "swap" else 0)


def test_drafts_are_accepted_where_the_matrix_runs(
    build_llm: Callable[..., LLM], drafter_settings: Callable[[str], list[str]]
) -> None:
    """The matrix would prove nothing about speculation if no draft were ever accepted, or all of them."""
    for drafter in ("ngram", "self_spec"):
        llm = build_llm(f"spec_decode={drafter}", "cache.block_size=4", *drafter_settings(drafter))
        llm.generate(_prompts(4), SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True))
        stats = llm.engine.stats
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


@pytest.fixture(scope="session")
def tiny_gguf(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model in blocks, for quant=gguf."""
    return write_in_blocks(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_folder)


@pytest.fixture(scope="session")
def plain_model_of(
    tiny_folder: Path, tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], PlainModel]:
    """The tiny model with the weights that a quant plugin computes with, by the plugin's name."""

    @cache
    def make(quant: str) -> PlainModel:
        if quant == "none":
            return load_plain_model(tiny_folder)
        folder = write_rounded(tmp_path_factory.mktemp(quant), quant, tiny_folder, tiny_gguf)
        return load_plain_model(folder, rounds_activations=quant == "int8_dynamic")

    return make


@pytest.fixture(scope="session")
def drafter_settings(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """What a drafter that was made for the tiny model needs, by its name; its weights are written once."""

    @cache
    def settings(drafter: str) -> list[str]:
        if drafter in ("ngram", "suffix", "synthetic"):
            return ["spec_decode/policy=fixed"]
        if drafter == "self_spec":
            # Mostly right: half of the second of two layers is left out.
            return ["spec_decode/policy=fixed", "spec_decode.skip_ffn=[1]"]
        if drafter == "medusa":
            heads = TinyMedusa(hidden_size=64, vocab_size=320).write(tmp_path_factory.mktemp(drafter))
            return [f"spec_decode.source={heads}"]
        if drafter == "draft_model":
            # The target's own weights, rounded: mostly right.
            return [f"spec_decode.source={tiny_folder}", "spec_decode.quant=int8"]
        if drafter == "eagle":
            head = TinyEagle(hidden_size=64, vocab_size=320).write(tmp_path_factory.mktemp(drafter))
            return [f"spec_decode.source={head}", "spec_decode.tree_width=2"]
        if drafter == "eagle3":
            head = TinyEagle3(hidden_size=64, vocab_size=320).write(tmp_path_factory.mktemp(drafter))
            return [f"spec_decode.source={head}"]
        if drafter == "mtp":
            module = TinyMtp("deepseek", hidden_size=64, vocab_size=320).write(tmp_path_factory.mktemp(drafter))
            return [f"spec_decode.source={module}", "spec_decode.tree_width=3"]
        return []

    return settings


def test_plain_model_is_a_model(tiny_folder: Path) -> None:
    """Its greedy output varies, so that equality means something."""
    plain: PlainModel = load_plain_model(tiny_folder)
    tokens = plain.greedy(tuple(_prompts(4)[0]), 24)
    assert len(set(tokens)) > 8


def _prompts(block_size: int) -> list[list[int]]:
    """Lengths around block borders; two share a prefix, two are equal, one repeats itself."""
    generator = torch.Generator().manual_seed(block_size)
    lengths = sorted({max(1, block_size - 1), block_size, block_size + 1, 2 * block_size})
    prompts: list[list[int]] = [torch.randint(1, 250, (n,), generator=generator).tolist() for n in lengths]
    shared: list[int] = torch.randint(1, 250, (2 * block_size + 1,), generator=generator).tolist()
    return [*prompts, [*shared, 7, 8], [*shared, 9], [*shared, 9], [5, 6, 7] * 5]
