"""EAGLE-3 heads: in the engine, under preemption, swap and prefix hits, they draft what plain PyTorch says."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.plugins.spec_decode.recorded_drafts import GREEDY, MODEL, Recorder, chain_of, run_twice, tree_of
from tests.plugins.spec_decode.tiny_eagle3 import TinyEagle3
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import DraftKVGroup
from tokenloom.testing import SpecDecodeSuite
from tokenloom.testing.drawn_drafts import check_distributions, check_frequencies, draw_many
from tokenloom.testing.engine_harness import ChosenDrafts
from tokenloom.testing.tiny_engine import TinyEngine, TinySettings, drafter_context
from tokenloom_spec_decode.draft_quant import head_quant
from tokenloom_spec_decode.eagle3 import Eagle3Config
from tokenloom_spec_decode.eagle3_config import default_aux_layers
from tokenloom_spec_decode.eagle_drafter import EagleDrafter
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig

EMBEDDING = MODEL.embed(torch.arange(MODEL.vocab_size))
POLICY = PluginChoice("spec_decode.policy", "fixed", FixedPolicyConfig())


class TestEagle3(SpecDecodeSuite):
    plugin = "eagle3"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _head(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.settings = {"source": str(TinyEagle3().write(tmp_path_factory.mktemp("head")))}


def build(folder: Path, tree_width: int = 1, lookup_match: int = 0, **settings: Any) -> EagleDrafter:
    settings |= {"tree_width": tree_width, "lookup_match": lookup_match}
    return Eagle3Config(source=str(folder), policy=POLICY, **settings).build(drafter_context(MODEL, 64))


def check(recorder: Recorder, head: TinyEagle3, width: int = 1, least: float = -math.inf) -> int:
    """Compares a fifth of the proposals with the reference; returns how many there were."""
    assert head.aux_ids is not None
    layers = [number - 1 for number in head.aux_ids]
    for tokens, max_drafts, is_chain, proposal in recorder.proposed[::5]:
        log_probs = partial(head.log_probs, recorder.features(tokens, layers), tokens, EMBEDDING)
        is_chain = is_chain or width == 1 or max_drafts == 1
        expected = chain_of(log_probs, max_drafts, least) if is_chain else tree_of(log_probs, max_drafts, width, least)
        if least > -math.inf:
            assert len(proposal.token_ids) == len(expected.token_ids), f"after {tokens}"
        assert proposal.token_ids[:max_drafts] == expected.token_ids[: len(proposal.token_ids)], f"after {tokens}"
        assert proposal.parents == expected.parents
    return len(recorder.proposed)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True},
    {"norm_output": True},
    {"is_reduced": False},
    {"has_qk_norm": True},
]


@pytest.mark.parametrize(("layout", "variant"), [("speculators", VARIANTS[0]), *(("safeailab", v) for v in VARIANTS)])
def test_eagle3_drafts_what_plain_pytorch_says(layout: str, variant: dict[str, Any], tmp_path: Path) -> None:
    head = TinyEagle3(**variant)
    recorder, _ = run_twice(build(head.write(tmp_path, layout)), TinySettings(budget=11))
    assert check(recorder, head) > 40


@pytest.mark.parametrize(
    ("cache", "settings"),
    [
        ("hash", {"num_blocks": 20, "budget": 16}),
        ("radix", {"num_blocks": 20, "preempt_mode": "swap"}),
        ("hash", {"num_blocks": 20, "partial_preemption": True}),
        ("hash", {"num_blocks": 60, "block_size": 1, "preempt_mode": "swap"}),
        ("none", {"num_blocks": 20, "preempt_mode": "swap", "budget": 9}),
        ("radix", {"block_size": 2, "budget": 5}),
    ],
    ids=str,
)
def test_no_entry_is_lost_or_stale(cache: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """An entry at t depends on token t + 1: wrong ones would come from prefixes that part right behind a block."""
    head = TinyEagle3()
    recorder, engine = run_twice(build(head.write(tmp_path)), TinySettings(cache=cache, **settings))
    assert check(recorder, head) > 40
    if "num_blocks" in settings:
        assert engine.engine.stats.num_preemptions > 0
    assert (engine.engine.stats.num_swaps > 0) == ("preempt_mode" in settings)


@pytest.mark.parametrize("variant", VARIANTS[:2], ids=str)
def test_steps_in_which_nobody_drafts_leave_their_entries(variant: dict[str, Any], tmp_path: Path) -> None:
    """Then the head only stores keys and values; the first drafts behind depend on all of them."""
    head = TinyEagle3(**variant)
    recorder = Recorder(build(head.write(tmp_path)))
    lengths = ChosenDrafts(lambda request, _: 3 if request.num_tokens > 12 else 0)
    engine = TinyEngine(MODEL, recorder, lengths, TinySettings(budget=5))
    for number in range(3):
        engine.add(f"r{number}", [3, 1, 4, 1, 5, number], GREEDY)
    engine.run()
    recorder.proposed = [entry for entry in recorder.proposed for _ in range(5)]  # `check` takes a fifth
    assert check(recorder, head) > 20


def test_prompts_that_part_behind_a_block_share_one_block_less(tmp_path: Path) -> None:
    """Blocks of 4: the last entry of the second block depends on token 8, in which the prompts differ."""
    head = TinyEagle3()
    recorder = Recorder(build(head.write(tmp_path)))
    engine = TinyEngine(MODEL, recorder, ChosenDrafts(lambda *_: 3), TinySettings())
    shared = [5, 6, 7, 8, 9, 10, 11, 12]
    hits = []
    for number, tail in enumerate(([1, 2, 3], [2, 2, 3], [1, 4, 4])):
        hits.append(engine.add(f"r{number}", [*shared, *tail], GREEDY))
        engine.run()
    assert [request.num_cached_tokens for request in hits] == [0, 4, 8]
    assert check(recorder, head) > 10


@pytest.mark.parametrize("settings", [{}, {"num_blocks": 24, "preempt_mode": "swap"}, {"takes_trees": False}], ids=str)
def test_trees_grow_where_the_head_is_confident(settings: dict[str, Any], tmp_path: Path) -> None:
    head = TinyEagle3()
    recorder, engine = run_twice(build(head.write(tmp_path), tree_width=3), TinySettings(**settings), most_drafts=7)
    assert check(recorder, head, width=3) > 40
    assert any(row.draft_parents for plan in engine.plans for row in plan.rows) == settings.get("takes_trees", True)


@pytest.mark.parametrize(("width", "least"), [(1, 0.3), (3, 0.2)])
def test_drafts_that_are_unlikely_are_left_out(width: int, least: float, tmp_path: Path) -> None:
    head = TinyEagle3()
    cautious = build(head.write(tmp_path), tree_width=width, min_probability=least)
    recorder, _ = run_twice(cautious, TinySettings(), most_drafts=5)
    assert check(recorder, head, width, math.log(least)) > 20
    assert any(len(proposal.token_ids) < most for _, most, _, proposal in recorder.proposed)


@pytest.mark.parametrize("width", [1, 3])
def test_what_the_text_repeats_is_drafted_instead(width: int, tmp_path: Path) -> None:
    """Behind the longest run of two tokens and more that occurred before; elsewhere the head's drafts, from a KV memory
    that has no holes."""
    head = TinyEagle3()
    drafter = build(head.write(tmp_path), tree_width=width, lookup_match=2)
    recorder, _ = run_twice(drafter, TinySettings(num_blocks=20), most_drafts=5)
    repeated = [(tokens, proposal) for tokens, _, _, proposal in recorder.proposed if followers(tokens, 2)]
    assert len(repeated) > 20
    for tokens, proposal in repeated:
        counts = followers(tokens, 2)
        assert counts[proposal.token_ids[0]] == max(counts.values()), f"after {tokens}"
    recorder.proposed = [entry for entry in recorder.proposed if not followers(entry[0], 2)]
    assert check(recorder, head, width) > 20


def followers(tokens: Sequence[int], shortest: int) -> Counter[int]:
    """How often each token followed the longest run of last tokens, of `shortest` at least, that occurred before."""
    for length in range(len(tokens) - 1, shortest - 1, -1):
        last = tokens[-length:]
        found = [tokens[end] for end in range(length, len(tokens)) if tokens[end - length : end] == last]
        if found:
            return Counter(found)
    return Counter()


def test_a_quantized_head_takes_less_memory_and_drafts_much_the_same(tmp_path: Path) -> None:
    head = TinyEagle3()
    folder = head.write(tmp_path)
    dense, packed = build(folder), build(folder, quant="int8")
    assert packed.num_weight_bytes < 0.5 * dense.num_weight_bytes
    assert packed.needs().kv_fingerprint != dense.needs().kv_fingerprint
    first, second = (run_twice(drafter, TinySettings())[0].proposed for drafter in (dense, packed))
    theirs = {tokens[:-1]: proposal.token_ids[0] for tokens, _, _, proposal in first}
    same = [theirs[tokens[:-1]] == drafts.token_ids[0] for tokens, _, _, drafts in second if tokens[:-1] in theirs]
    assert len(same) > 40
    assert sum(same) > 0.8 * len(same)


def test_a_head_is_quantized_by_default_where_native_operations_compute() -> None:
    context = drafter_context(MODEL)
    assert head_quant("default", context)[0] == "none"
    assert head_quant("default", replace(context, operations="native"))[0] == "int8_dynamic"
    assert head_quant("int4", context) == ("int4", {})


def test_a_quantizer_that_cannot_serve_the_target_is_refused(tmp_path: Path) -> None:
    folder, context = TinyEagle3().write(tmp_path), replace(drafter_context(MODEL, 64), dtype=torch.float16)
    with pytest.raises(ConfigError, match=r"spec_decode\.quant=int4 cannot store weights for float16 on cpu"):
        Eagle3Config(source=str(folder), policy=POLICY, quant="int4").build(context)


@pytest.mark.parametrize(
    ("quant", "why"), [("int9", "quant=int9: no such quant"), ("awq", "quant=awq reads checkpoints")]
)
def test_a_quantizer_that_does_not_fit_is_said_to_be_the_drafter_s(quant: str, why: str, tmp_path: Path) -> None:
    """Plugins speak of quant=, and following them there would change the target."""
    with pytest.raises(ConfigError, match=rf"drafter's .* quant= stands for spec_decode\.quant=: {why}"):
        build(TinyEagle3().write(tmp_path), quant=quant)


def test_drawn_drafts_have_the_probs_they_claim(tmp_path: Path) -> None:
    """Over a reduced vocabulary: what cannot be drafted has probability 0."""
    folder = TinyEagle3().write(tmp_path)
    drawn = draw_many(lambda: build(folder, verifier="rejection"), drafter_context(MODEL, 64), 600)
    check_distributions(drawn)
    check_frequencies(drawn)


def test_an_embedding_of_its_own_is_used(tmp_path: Path) -> None:
    head = TinyEagle3()
    head.embedding = torch.randn(64, 32, generator=torch.Generator().manual_seed(9))
    recorder, _ = run_twice(build(head.write(tmp_path)), TinySettings())
    assert check(recorder, head) > 40


def test_needs_are_three_states_and_one_layer(tmp_path: Path) -> None:
    needs = build(TinyEagle3(aux_ids=(2, 1, 2)).write(tmp_path)).needs()
    assert needs.hidden_layers == (0, 1)
    assert needs.kv_groups == (DraftKVGroup(1, num_kv_heads=2, head_dim=8, lookahead=1, num_heads=4),)
    other = build(TinyEagle3(seed=1).write(tmp_path / "other")).needs()
    assert other.kv_fingerprint != needs.kv_fingerprint


@pytest.mark.parametrize(("num_layers", "layers"), [(32, (1, 15, 28)), (30, (1, 14, 26)), (80, (1, 39, 76))])
def test_usual_layers_follow_from_the_targets_depth(num_layers: int, layers: tuple[int, ...]) -> None:
    assert default_aux_layers(num_layers) == layers


def _change_config(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def _change_tensors(**values: torch.Tensor | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "pytorch_model.bin"
        tensors = {**torch.load(path, weights_only=True), **values}
        torch.save({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_change_config(eagle_config={}), r"reads 3 states between layers 1 and 2 .* gives \[2, 1, -1\]"),
        (_change_config(fc_norm=True), "sets 'fc_norm', a norm of newer heads"),
        (_change_config(num_hidden_layers=2), "EAGLE-3 heads have 1 layer, 'num_hidden_layers' is 2"),
        (_change_config(hidden_size=48, head_dim=8), "head for targets of hidden size 48; this one's is 32"),
        (_change_config(vocab_size=100), "head for a vocabulary of 100 tokens; this target's has 64"),
        (_change_config(eagle_config={"use_aux_hidden_state": False}), "reads no states of inner layers"),
        (_change_config(speculators_model_type="mlp"), "describes a 'mlp' head"),
        (_change_tensors(**{"fc.weight": None}), "lacks the tensor 'fc.weight'"),
        (_change_tensors(**{"fc.weight": torch.ones(3, 3)}), r"has 'fc.weight' as torch.float32 of shape \[3, 3\]"),
        (_change_tensors(extra=torch.ones(1)), "holds 1 tensors that the head has no place for, first 'extra'"),
        (_change_tensors(d2t=None), "has no 'd2t' to say what its 32 draft tokens mean"),
        (_change_tensors(d2t=torch.zeros(31, dtype=torch.int64)), "'d2t' must hold 32 integers"),
        (_change_tensors(d2t=torch.full((32,), 40)), "must lead to distinct token ids from 0 to 63"),
        (_change_tensors(t2d=torch.ones(64, dtype=torch.bool)), "'t2d' and 'd2t' name different tokens"),
        (_change_tensors(**{"lm_head.weight": None}), "has no 'lm_head.weight'"),
    ],
)
def test_heads_that_do_not_fit_are_refused(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    folder = TinyEagle3().write(tmp_path)
    change(folder)
    with pytest.raises(ModelError, match=message):
        build(folder)


def test_a_head_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"set spec_decode\.source"):
        Eagle3Config(policy=POLICY).build(drafter_context(MODEL))
