"""Drafters with KV groups of their own, as a user chooses them: a copy of the target as draft model is always right.

So every draft tells whether the drafter's memory is right: through windows, chunks, hits, preemption and swap.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.core.models.family_checkpoints import write_family
from tests.plugins.spec_decode.tiny_eagle3 import TinyEagle3
from tests.tiny_model import write_byte_tokenizer, write_tiny_llama
from tokenloom import LLM, SamplingParams
from tokenloom.compose import compose_config
from tokenloom.errors import CapabilityError, ConfigError
from tokenloom.interfaces.contract import Capabilities
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.memory_forecast import forecast_memory

SHARED = [(31 * index * index + 7 * index) % 251 for index in range(17)]
PROMPTS = (SHARED, [*SHARED, 5, 6], [3], list(range(11, 20)), [*SHARED[:9], 7], [5, 6, 7] * 5, SHARED)
PARAMS = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {},  # windows in every second layer, soft caps, a scaled embedding
    "smollm3": {"use_sliding_window": True, "sliding_window": 7, "no_rope_layer_interval": 4},
}


@pytest.fixture(scope="module")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny random checkpoint of a family, written once."""
    folders: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in folders:
            settings = {"vocab_size": 288, **FAMILIES[name]}
            folders[name] = write_family(tmp_path_factory.mktemp(name), name, settings, seed=3)
            write_byte_tokenizer(folders[name])
        return folders[name]

    return get


@pytest.mark.parametrize(
    ("family", "cache", "attention", "mode"),
    [
        ("llama", "hash", "native_cpu", "recompute"),
        ("llama", "none", "naive", "swap"),
        ("gemma2", "radix", "torch_sdpa", "swap"),
        ("gemma2", "hash", "native_cpu", "recompute"),
        ("smollm3", "radix", "native_cpu", "recompute"),
        ("smollm3", "hash", "torch_sdpa", "swap"),
    ],
)
def test_a_copy_of_the_target_drafts_without_a_fault(
    family: str,
    cache: str,
    attention: str,
    mode: str,
    family_folder: Callable[[str], Path],
    build_llm: Callable[..., LLM],
) -> None:
    folder = family_folder(family)
    common = (f"model={folder}", f"cache={cache}", f"attention={attention}", "cache.block_size=4")
    plain = build_llm(*common).generate([list(prompt) for prompt in PROMPTS], PARAMS)
    llm = build_llm(
        *common,
        "spec_decode=draft_model",
        f"spec_decode.source={folder}",
        "cache.num_blocks=18",
        "scheduler.max_num_batched_tokens=64",
        f"scheduler.preempt_mode={mode}",
    )
    outputs = llm.generate([list(prompt) for prompt in PROMPTS], PARAMS)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
    stats = llm.engine.stats
    assert stats.num_preemptions > 0
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 40
    assert llm.engine.kv_usage()["active"] == 0


def test_choices_of_one_prompt_copy_the_drafters_block_as_well(
    tiny_folder: Path, build_llm: Callable[..., LLM]
) -> None:
    """The prompt ends in the middle of a block; drafts behind a block that was not copied would be wrong."""
    params = SamplingParams(n=3, temperature=0.8, seed=7, max_tokens=20, ignore_eos=True)
    prompt = SHARED[:10]
    plain = build_llm("cache.block_size=4").generate([prompt], params)[0]
    llm = build_llm("cache.block_size=4", "spec_decode=draft_model", f"spec_decode.source={tiny_folder}")
    found = llm.generate([prompt], params)[0]
    assert [choice.token_ids for choice in found.outputs] == [choice.token_ids for choice in plain.outputs]
    stats = llm.engine.stats
    assert stats.num_cached_tokens == 2 * 9  # all but the prompt's last token, of two choices
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 20


def test_eagle3_runs_as_it_is_chosen(build_llm: Callable[..., LLM], tmp_path: Path) -> None:
    """A random head for the tiny model: output is the target's, and two groups of KV are kept."""
    head = TinyEagle3(hidden_size=64, vocab_size=320, aux_ids=(1, 2, 2)).write(tmp_path, "speculators")
    prompts = [list(prompt) for prompt in PROMPTS]
    plain = build_llm("cache.block_size=4").generate(prompts, PARAMS)
    for verifier in ("position_noise", "rejection"):
        llm = build_llm(
            "cache.block_size=4",
            "cache.num_blocks=34",
            "spec_decode=eagle3",
            f"spec_decode.source={head}",
            f"spec_decode.verifier={verifier}",
        )
        outputs = llm.generate(prompts, PARAMS)
        assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
        assert [(group.is_drafter, group.lookahead) for group in llm.engine.facts.kv_groups] == [(False, 0), (True, 1)]
        assert llm.engine.stats.num_draft_tokens > 60


def test_a_draft_model_with_another_tokenizer_is_refused(build_llm: Callable[..., LLM], tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, vocab_size=320, with_tokenizer=True)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ConfigError, match="another vocabulary than the target: its token 97 is 'b', the target's 'a'"):
        build_llm("spec_decode=draft_model", f"spec_decode.source={folder}")


def test_padded_rows_of_the_vocabulary_may_differ(build_llm: Callable[..., LLM], tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, vocab_size=256, with_tokenizer=True)
    llm = build_llm("spec_decode=draft_model", f"spec_decode.source={folder}")
    plain = build_llm().generate([[300, 5, 310]], PARAMS)
    assert llm.generate([[300, 5, 310]], PARAMS)[0].outputs[0].token_ids == plain[0].outputs[0].token_ids


def test_attention_that_cannot_serve_the_drafters_heads_is_refused(
    build_llm: Callable[..., LLM], tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's heads have 16 elements, which are all that this attention plugin takes."""
    from tokenloom.executors import drafting

    folder = write_tiny_llama(tiny_folder.parent / "other_heads", vocab_size=320, with_tokenizer=True, head_dim=32)
    check = drafting._check_attention

    def limited(can: Capabilities, *rest: Any) -> None:
        check(Capabilities(head_dims=(16,), flags=can.flags), *rest)

    monkeypatch.setattr(drafting, "_check_attention", limited)
    with pytest.raises(CapabilityError, match=r"needs head_dim in \(16\), spec_decode=draft_model has 32"):
        build_llm("spec_decode=draft_model", f"spec_decode.source={folder}")


@pytest.mark.parametrize("drafter", ["draft_model", "eagle3", "self_spec"])
def test_a_memory_plan_knows_the_drafter(
    drafter: str, build_llm: Callable[..., LLM], tiny_folder: Path, tmp_path: Path
) -> None:
    """Its weights, its KV memory and the states that it reads."""
    TinyEagle3(hidden_size=64, vocab_size=320).write(tmp_path)
    source = {"draft_model": [f"spec_decode.source={tiny_folder}"], "eagle3": [f"spec_decode.source={tmp_path}"]}
    overrides = [f"spec_decode={drafter}", *source.get(drafter, [])]
    facts = build_llm(*overrides).engine.facts
    checkpoint = open_checkpoint(tiny_folder)
    try:
        model = [f"model={tiny_folder}", "model.dtype=float32", "cache.num_blocks=100"]
        found = forecast_memory(compose_config([*model, *overrides]).engine, checkpoint, None)
        plain = forecast_memory(compose_config(model).engine, checkpoint, None)
    finally:
        checkpoint.close()
    assert found.groups == facts.kv_groups
    assert found.plan.breakdown["weights"] == facts.memory["weights"]
    assert (found.plan.breakdown["weights"] > plain.plan.breakdown["weights"]) == (drafter != "self_spec")
