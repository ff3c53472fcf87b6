"""Every family through the whole engine: chunked, preempted, with prefix hits, token by token as Transformers says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.models.family_checkpoints import FAMILIES, oracle_logits, write_family
from tests.e2e.conftest import TINY_OVERRIDES
from tests.e2e.plain_model import GAP
from tests.e2e.preempting_scheduler import PreemptingConfig
from tests.tiny_model import write_byte_tokenizer
from tokenloom import LLM, SamplingParams
from tokenloom.compose import compose_config
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.plugins import Registry

NUM_OUTPUT_TOKENS = 16
SHARED = [(31 * index * index + 7 * index) % 251 for index in range(37)]
LONG = [*SHARED, *(index % 251 for index in range(3, 40))]
PROMPTS = (SHARED, [*SHARED[:29], 5, 6, 7], [3], [11, 12, 13, 14, 15, 16, 17, 18, 19])
SETTINGS: dict[str, dict[str, Any]] = {
    "phi3": {
        "original_max_position_embeddings": 48,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 8.0],
        },
    },
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "smollm3": {"use_sliding_window": True, "sliding_window": 6, "no_rope_layer_interval": 2},
}
NUM_GROUPS = {"gemma2": 2, "gemma3": 2, "qwen2": 2, "smollm3": 2}
WINDOWED = ("mistral", "gemma2")


@pytest.fixture(scope="module")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny random checkpoint of a family, with the byte-level tokenizer, written once."""
    folders: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in folders:
            settings = {"vocab_size": 288, **SETTINGS.get(name, {})}
            folders[name] = write_family(tmp_path_factory.mktemp(name), name, settings, seed=3)
            write_byte_tokenizer(folders[name])
        return folders[name]

    return get


@pytest.fixture
def family_llm(family_folder: Callable[[str], Path], test_registry: Registry) -> Iterator[Callable[..., LLM]]:
    """Builds an engine on a family's checkpoint: family_llm("qwen2", "cache=none"); closes it at the end."""
    built: list[LLM] = []

    def build(name: str, *overrides: str, scheduler: PluginChoice | None = None) -> LLM:
        composed = compose_config([f"model={family_folder(name)}", *TINY_OVERRIDES, *overrides], registry=test_registry)
        if scheduler is not None:
            engine = composed.engine.model_copy(update={"scheduler": scheduler})
            composed = type(composed)(engine, composed.extras, composed.sources, composed.choices)
        built.append(LLM(config=composed, registry=test_registry, show_progress=False))
        return built[-1]

    yield build
    for llm in built:
        llm.close()


def assert_greedy(folder: Path, prompt: list[int], output: list[int]) -> None:
    """Asserts that `output` is Transformers' greedy continuation, up to the first near tie."""
    logits = oracle_logits(folder, prompt + output)[len(prompt) - 1 : -1]  # [len(output), V]
    for position, token_id in enumerate(output):
        best = logits[position].topk(2)
        if token_id != int(best.indices[0]):
            gap = float(best.values[0] - best.values[1])
            assert gap <= GAP, f"output position {position}: got {token_id}, Transformers says {best} after {output}"
            return


@pytest.mark.parametrize("name", FAMILIES)
def test_engine_gives_the_greedy_tokens_of_transformers(
    family_llm: Callable[..., LLM], family_folder: Callable[[str], Path], name: str
) -> None:
    # Chunks of at most 16 tokens, blocks of 4; each request but the first is preempted at every fifth output token.
    scheduler = PluginChoice(
        "scheduler", "preempting", PreemptingConfig(max_num_batched_tokens=16, max_num_seqs=4, stride=5)
    )
    llm = family_llm(name, "cache=hash", "cache.block_size=4", scheduler=scheduler)
    assert len(llm.engine.facts.kv_groups) == NUM_GROUPS.get(name, 1)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True)
    # Transformers takes Phi-3's long divisors for prompts beyond 48 tokens; the engine for all, as it runs up to 256.
    prompts = [list(prompt) for prompt in ((LONG, LONG[:60]) if name == "phi3" else PROMPTS)]
    first = llm.generate(prompts, params)
    assert llm.engine.stats.num_preemptions >= 2 * (len(prompts) - 1)
    (again,) = llm.generate([prompts[1]], params)
    assert again.num_cached_tokens >= 28, "the second run hits the prefix that the first one left"
    for prompt, output in zip([*prompts, prompts[1]], [*first, again], strict=True):
        assert len(output.outputs[0].token_ids) == NUM_OUTPUT_TOKENS
        assert_greedy(family_folder(name), prompt, output.outputs[0].token_ids)
    assert llm.engine.kv_usage()["active"] == 0


@pytest.mark.parametrize("name", ["mistral", "gemma2", "smollm3"])
@pytest.mark.parametrize("cache", ["none", "hash"])
def test_windows_come_back_from_host_memory(
    family_llm: Callable[..., LLM], family_folder: Callable[[str], Path], name: str, cache: str
) -> None:
    """Windows alone, and beside full attention: nothing is computed twice, and every token is right."""
    config = PreemptingConfig(max_num_batched_tokens=16, max_num_seqs=4, stride=3, preempt_mode="swap")
    llm = family_llm(
        name, f"cache={cache}", "cache.block_size=4", scheduler=PluginChoice("scheduler", "preempting", config)
    )
    params = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True)
    for prompt, output in zip(PROMPTS, llm.generate([list(prompt) for prompt in PROMPTS], params), strict=True):
        assert_greedy(family_folder(name), list(prompt), output.outputs[0].token_ids)
    stats = llm.engine.stats
    assert stats.num_swaps == len(config.log) > 0
    assert stats.num_recomputed_tokens == 0


@pytest.mark.parametrize("name", WINDOWED)
def test_engine_frees_what_left_the_window(
    family_llm: Callable[..., LLM], family_folder: Callable[[str], Path], name: str
) -> None:
    llm = family_llm(name, "cache=none", "cache.block_size=4")
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    stream = llm.stream(list(SHARED), params)
    token_ids = [token_id for _ in range(50) for token_id in next(stream).token_ids]
    groups = llm.engine.facts.kv_groups
    num_tokens = len(SHARED) + len(token_ids)
    # A window of 7 touches 3 blocks of 4 at most; one more is there for the tokens to come.
    num_full = sum(group.window is None for group in groups)
    most = num_full * (num_tokens // 4 + 2) + (len(groups) - num_full) * 4
    assert llm.engine.kv_usage()["active"] <= most < len(groups) * (num_tokens // 4)
    assert_greedy(family_folder(name), list(SHARED), token_ids)
    stream.close()


def test_engine_takes_longrope_divisors_by_its_longest_sequence(
    family_llm: Callable[..., LLM], family_folder: Callable[[str], Path]
) -> None:
    within, beyond = (family_llm("phi3", f"model.max_model_len={length}") for length in (48, 49))
    params = SamplingParams(temperature=0.0, max_tokens=11, ignore_eos=True)
    outputs = [llm.generate([list(SHARED)], params)[0].outputs[0].token_ids for llm in (within, beyond)]
    assert_greedy(family_folder("phi3"), list(SHARED), outputs[0])
    assert outputs[0] != outputs[1]
    assert within.engine.facts.block_root != beyond.engine.facts.block_root, "their keys must not be shared"
