"""The target drafts for itself: with all of its layers every draft is right, unless its KV memory were wrong."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import LayerParts
from tokenloom.request import RequestView
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing import SpecDecodeSuite
from tokenloom.testing.drafter_rig import NoDrafts
from tokenloom.testing.engine_harness import ChosenDrafts
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom.testing.tiny_engine import TinyEngine, TinySettings, drafter_context
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig
from tokenloom_spec_decode.self_spec import SelfSpecConfig, SelfSpecDrafter

MODEL = TinyDecoder()
POLICY = PluginChoice("spec_decode.policy", "fixed", FixedPolicyConfig())
PROMPTS = ([3, 1, 4], [1, 5, 9, 2], [6, 5, 3, 5, 8], [9, 7, 9] * 4, [9, 7, 9] * 4 + [5], [7])
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


class TestEarlyExit(SpecDecodeSuite):
    plugin = "self_spec"
    settings = {"exit_layer": 1}


class TestSearch(SpecDecodeSuite):
    plugin = "self_spec"
    settings = {"search_drafts": 60}


def drafter(**settings: Any) -> SelfSpecDrafter:
    return SelfSpecConfig(policy=POLICY, **settings).build(drafter_context(MODEL))


def lengths(request: RequestView, _num_running: int) -> int:
    """0 to 5 drafts, changing every step."""
    return (request.num_tokens * 7 + len(request.request_id)) % 6


def run(
    drafts: SelfSpecDrafter | NoDrafts,
    settings: TinySettings | None = None,
    params: SamplingParams = GREEDY,
    prompts: Sequence[Sequence[int]] = PROMPTS,
) -> tuple[dict[str, list[int]], TinyEngine]:
    engine = TinyEngine(MODEL, drafts, ChosenDrafts(lengths), settings)
    for number, prompt in enumerate(prompts):
        engine.add(f"r{number}", prompt, params, seed=number)
    return engine.run(), engine


AMPLE: list[dict[str, Any]] = [{}, {"block_size": 1, "budget": 9}, {"budget": 5}]
SHORT: list[dict[str, Any]] = [
    {"num_blocks": 20, "budget": 16},
    {"num_blocks": 20, "preempt_mode": "swap"},
    {"num_blocks": 20, "partial_preemption": True},
]


@pytest.mark.parametrize(
    ("cache", "settings"),
    [*product(("hash", "contiguous"), AMPLE), *product(("none", "hash"), SHORT), ("radix", SHORT[1])],
    ids=str,
)
def test_with_all_layers_every_draft_is_right(cache: str, settings: dict[str, Any]) -> None:
    """Through chunks, hits, preemption and swap: one wrong entry behind the frontier and a draft would be wrong."""
    outputs, engine = run(drafter(exit_layer=2), TinySettings(cache=cache, **settings))
    assert outputs == run(NoDrafts())[0]
    stats = engine.engine.stats
    assert stats.num_draft_tokens > 50
    assert stats.num_accepted_tokens == stats.num_draft_tokens
    assert engine.engine.kv_usage()["active"] == 0
    if "num_blocks" in settings:
        assert stats.num_preemptions > 0


@pytest.mark.parametrize("settings", [{"exit_layer": 1}, {"skip_attention": (0,)}, {"search_drafts": 100}], ids=str)
@pytest.mark.parametrize("memory", [{}, SHORT[0], SHORT[1]], ids=str)
def test_with_some_layers_nothing_changes_but_the_speed(settings: dict[str, Any], memory: dict[str, Any]) -> None:
    """What the drafts wrote into the target's own memory is overwritten before anybody reads it."""
    outputs, engine = run(drafter(**settings), TinySettings(**memory))
    assert outputs == run(NoDrafts())[0]
    stats = engine.engine.stats
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


def test_cached_prefixes_hold_nothing_of_the_drafts() -> None:
    """Blocks that wrong drafts were written to are found again, with the target's own entries in them."""
    engine = TinyEngine(MODEL, drafter(exit_layer=1), ChosenDrafts(lambda *_: 5), TinySettings())
    engine.add("first", [5, 6, 7] * 4, GREEDY)
    first = engine.run()["first"]
    again = engine.add("again", [*[5, 6, 7] * 4, *first[:16]], GREEDY.with_changes(max_tokens=8))
    assert engine.run()["again"] == first[16:]
    assert again.num_cached_tokens == 24
    assert [(group.is_drafter, group.takes_drafts) for group in engine.engine.facts.kv_groups] == [(False, True)]


def test_seeded_drafts_agree_with_the_target() -> None:
    """It draws with the noise that the target will use; with all layers from the same distribution, too."""
    params = SamplingParams(temperature=0.8, top_k=20, max_tokens=24)
    outputs, engine = run(drafter(exit_layer=2), params=params)
    assert outputs == run(NoDrafts(), params=params)[0]
    assert engine.engine.stats.num_accepted_tokens == engine.engine.stats.num_draft_tokens > 50


def test_short_memory_shortens_drafts_before_it_takes_anybodys_blocks() -> None:
    """Room for the sequence and not one block more: drafts fit into what is left, nobody is preempted."""
    engine = TinyEngine(MODEL, drafter(exit_layer=2), ChosenDrafts(lambda *_: 5), TinySettings(num_blocks=9))
    engine.add("r", [3, 1, 4, 1, 5], SamplingParams(temperature=0.0, max_tokens=27))
    engine.run()
    stats = engine.engine.stats
    assert stats.num_preemptions == 0
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 15


def test_a_search_ends_with_the_set_that_it_names(caplog: pytest.LogCaptureFixture) -> None:
    searching = drafter(search_drafts=40, search_share=0.25)
    with caplog.at_level(logging.WARNING):
        run(searching)
    assert re.search(
        r"are right with spec_decode\.skip_attention=\[[\d,]*\] spec_decode\.skip_ffn=\[[\d,]*\]$", caplog.messages[-1]
    )
    fixed = searching.parts
    run(searching)
    assert searching.parts is fixed
    assert fixed.num_parts == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exit_layer": 3}, r"spec_decode.exit_layer: the model has 2 layers, so it is at most 2, got 3"),
        ({"skip_attention": (0, 2)}, r"spec_decode.skip_attention: .* at most 1, got 2"),
        ({"skip_ffn": (5,)}, r"spec_decode.skip_ffn: .* at most 1, got 5"),
    ],
)
def test_layers_that_the_model_does_not_have_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drafter(**settings)


def test_two_ways_to_say_what_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="exit_layer=1 and skip_attention or skip_ffn are two ways"):
        SelfSpecConfig(policy=POLICY, exit_layer=1, skip_ffn=(0,))


def test_parts_count_what_runs() -> None:
    assert LayerParts((True, False), (True, True)).num_parts == 3
