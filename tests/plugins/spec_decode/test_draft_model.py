"""A draft model: with the target's own weights every draft is right, unless its KV memory were wrong."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_model import write_tiny_llama
from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import DraftKVGroup
from tokenloom.request import RequestView
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing import SpecDecodeSuite
from tokenloom.testing.drafter_rig import NoDrafts
from tokenloom.testing.drawn_drafts import check_distributions, check_frequencies, draw_many
from tokenloom.testing.engine_harness import ChosenDrafts
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom.testing.tiny_engine import TinyEngine, TinySettings, drafter_context
from tokenloom_spec_decode.draft_model import DraftModelConfig, DraftModelDrafter, DraftSizes
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig

MODEL = TinyDecoder()
SIZES = DraftSizes(MODEL.num_heads, MODEL.num_kv_heads, MODEL.head_dim, MODEL.vocab_size)
POLICY = PluginChoice("spec_decode.policy", "fixed", FixedPolicyConfig())
PROMPTS = ([3, 1, 4], [1, 5, 9, 2], [6, 5, 3, 5, 8], [9, 7, 9] * 4, [9, 7, 9] * 4 + [5], [7], [3, 2, 3, 8, 4, 6, 2, 6])
GREEDY = SamplingParams(temperature=0.0, max_tokens=30)


class TestDraftModel(SpecDecodeSuite):
    plugin = "draft_model"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _model(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = write_tiny_llama(tmp_path_factory.mktemp("draft"), vocab_size=64, hidden_size=32, intermediate_size=48)
        cls.settings = {"source": str(folder)}


def itself() -> DraftModelDrafter:
    """The target as its own draft model."""
    return DraftModelDrafter(MODEL, SIZES, drafter_context(MODEL))


def lengths(request: RequestView, _num_running: int) -> int:
    """0 to 5 drafts, changing every step."""
    return (request.num_tokens * 7 + len(request.request_id)) % 6


def run(
    settings: TinySettings, params: SamplingParams = GREEDY, prompts: Sequence[Sequence[int]] = PROMPTS
) -> tuple[dict[str, list[int]], TinyEngine]:
    engine = TinyEngine(MODEL, itself(), ChosenDrafts(lengths), settings)
    for number, prompt in enumerate(prompts):
        engine.add(f"r{number}", prompt, params, seed=number)
    return engine.run(), engine


def plain(params: SamplingParams = GREEDY, prompts: Sequence[Sequence[int]] = PROMPTS) -> dict[str, list[int]]:
    engine = TinyEngine(MODEL, NoDrafts())
    for number, prompt in enumerate(prompts):
        engine.add(f"r{number}", prompt, params, seed=number)
    return engine.run()


AMPLE: list[dict[str, Any]] = [{}, {"block_size": 1, "budget": 9}, {"budget": 5}]
SHORT: list[dict[str, Any]] = [
    {"num_blocks": 20, "budget": 16},
    {"num_blocks": 20, "preempt_mode": "swap"},
    {"num_blocks": 20, "partial_preemption": True},
    {"num_blocks": 70, "block_size": 1, "preempt_mode": "swap"},
]


@pytest.mark.parametrize(
    ("cache", "settings"),
    [*product(("hash", "contiguous"), AMPLE), *product(("none", "hash"), SHORT), ("radix", SHORT[1])],
    ids=str,
)
def test_a_copy_of_the_target_is_always_right(cache: str, settings: dict[str, Any]) -> None:
    """Through chunks, hits, preemption and swap: one wrong entry in the drafter's memory and a draft would be wrong."""
    outputs, engine = run(TinySettings(cache=cache, **settings))
    assert outputs == plain()
    stats = engine.engine.stats
    assert stats.num_draft_tokens > 50
    assert stats.num_accepted_tokens == stats.num_draft_tokens
    assert engine.engine.kv_usage()["active"] == 0
    if "num_blocks" in settings:
        assert stats.num_preemptions > 0
        assert (stats.num_swaps > 0) == ("preempt_mode" in settings)


def test_cached_prefixes_hold_the_drafters_entries_as_well() -> None:
    """The same prompts again: hits of both groups, and drafts that are right from the first on."""
    engine = TinyEngine(MODEL, itself(), ChosenDrafts(lambda *_: 4), TinySettings())
    first = engine.add("first", [5, 6, 7] * 8, GREEDY)
    engine.run()
    again = engine.add("again", [5, 6, 7] * 8, GREEDY)
    assert engine.run()["again"] == engine.outputs["first"]
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 20)
    assert engine.engine.stats.num_accepted_tokens == engine.engine.stats.num_draft_tokens > 30
    assert [group.is_drafter for group in engine.engine.facts.kv_groups] == [False, True]


def test_seeded_drafts_agree_with_the_target() -> None:
    """Both draw with the same noise from the same distribution, so that every draft is right here, too."""
    params = SamplingParams(temperature=0.8, top_k=20, max_tokens=30)
    outputs, engine = run(TinySettings(), params)
    assert outputs == plain(params)
    assert engine.engine.stats.num_accepted_tokens == engine.engine.stats.num_draft_tokens > 80


def test_short_memory_shortens_drafts_before_it_takes_anybodys_blocks() -> None:
    """Room for the sequence and not one block more: drafts fit into what is left, nobody is preempted."""
    prompt, params = [3, 1, 4, 1, 5], SamplingParams(temperature=0.0, max_tokens=27)
    num_blocks = 1 + -(-(len(prompt) + 27) // 4)
    outputs, engine = run(TinySettings(num_blocks=num_blocks, cache="none"), params, [prompt])
    assert outputs == plain(params, [prompt])
    stats = engine.engine.stats
    assert stats.num_preemptions == 0
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 0


def test_another_model_is_wrong_and_right_and_never_changes_the_output() -> None:
    other = TinyDecoder(seed=0, scale=2.0)
    other._head = MODEL._head + 0.4 * torch.randn(MODEL._head.shape, generator=torch.Generator().manual_seed(1))
    for settings in (TinySettings(), TinySettings(num_blocks=20, preempt_mode="swap"), TinySettings(block_size=1)):
        drafter = DraftModelDrafter(other, SIZES, drafter_context(MODEL))
        engine = TinyEngine(MODEL, drafter, ChosenDrafts(lengths), settings)
        for number, prompt in enumerate(PROMPTS):
            engine.add(f"r{number}", prompt, GREEDY)
        assert engine.run() == plain()
        stats = engine.engine.stats
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


def test_drawn_drafts_have_the_probs_they_claim(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, vocab_size=64, hidden_size=32, intermediate_size=48)
    drawn = draw_many(lambda: build(folder, verifier="rejection"), drafter_context(MODEL, 64), 600)
    check_distributions(drawn)
    check_frequencies(drawn)


def test_needs_name_each_group_of_layers() -> None:
    needs = itself().needs()
    assert needs.hidden_layers == ()
    assert needs.kv_groups == (DraftKVGroup(num_layers=2, num_kv_heads=2, head_dim=8, num_heads=4),)


def build(folder: Path, **settings: Any) -> DraftModelDrafter:
    return DraftModelConfig(source=str(folder), policy=POLICY, **settings).build(drafter_context(MODEL, 64))


def test_a_quantized_draft_model_takes_less_memory(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, vocab_size=64)
    dense, packed = build(folder), build(folder, quant="int8")
    assert packed.num_weight_bytes < dense.num_weight_bytes
    assert packed.needs().kv_fingerprint != dense.needs().kv_fingerprint


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, vocab_size=80)
    with pytest.raises(ConfigError, match="another vocabulary than the target: it has 80 tokens, the target 64"):
        build(folder)


def test_a_model_that_cannot_reach_the_targets_length_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, vocab_size=64, max_position=100)
    with pytest.raises(ConfigError, match=r"reaches 100 positions, the target runs to 128; set model\.max_model_len"):
        build(folder)


def test_a_draft_model_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"set spec_decode\.source"):
        DraftModelConfig(policy=POLICY).build(drafter_context(MODEL))


def test_a_request_that_left_had_found_a_prefix_that_waited() -> None:
    """r1 finds blocks of r0, whose entries wait as its own do, and ends first; r2 finds blocks of both and drafts."""
    settings = TinySettings(max_waiting_states=24)
    engine = TinyEngine(MODEL, itself(), ChosenDrafts(lambda request, _: 4 * (request.request_id == "r2")), settings)
    shared, rest = [*range(5, 13)], [*range(20, 25)]
    engine.add("r0", [*shared, 1], SamplingParams(temperature=0.0, max_tokens=4))
    engine.step()
    second = engine.add("r1", [*shared, *rest], SamplingParams(temperature=0.0, max_tokens=1))
    engine.step()
    engine.step()
    third = engine.add("r2", [*shared, *rest, 25], SamplingParams(temperature=0.0, max_tokens=20))
    engine.run()
    assert (second.num_cached_tokens, third.num_cached_tokens) == (8, 12)
    stats = engine.engine.stats
    assert stats.num_draft_tokens > 10
    assert stats.num_accepted_tokens == stats.num_draft_tokens, "the target is its own draft model"
