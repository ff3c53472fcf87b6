"""EAGLE heads of the first two versions: chains and growing trees are what plain PyTorch says, in the engine."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.plugins.spec_decode.recorded_drafts import MODEL, Recorder, chain_of, run_twice, tree_of
from tests.plugins.spec_decode.tiny_eagle import TinyEagle
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import DraftKVGroup
from tokenloom.testing import SpecDecodeSuite
from tokenloom.testing.tiny_engine import TinySettings, drafter_context
from tokenloom_spec_decode.eagle import EagleConfig
from tokenloom_spec_decode.eagle_drafter import EagleDrafter
from tokenloom_spec_decode.eagle_tree import GrowingTree
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig

POLICY = PluginChoice("spec_decode.policy", "fixed", FixedPolicyConfig())
FINAL = -1


class TestEagleTrees(SpecDecodeSuite):
    plugin = "eagle"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _head(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.settings = {"source": str(TinyEagle().write(tmp_path_factory.mktemp("head"))), "tree_width": 2}


def build(folder: Path, **settings: Any) -> EagleDrafter:
    return EagleConfig(source=str(folder), policy=POLICY, **settings).build(drafter_context(MODEL))


def target_head() -> torch.Tensor:
    """[V, H] of the tiny target, got by asking it."""
    return MODEL.compute_logits(torch.eye(MODEL.hidden_size)).T


def check(recorder: Recorder, head: TinyEagle, width: int) -> int:
    for tokens, max_drafts, _, proposal in recorder.proposed[::5]:
        log_probs = partial(head.log_probs, recorder.features(tokens, [FINAL]), tokens, target_head())
        as_tree = width > 1 and max_drafts > 1
        expected = tree_of(log_probs, max_drafts, width) if as_tree else chain_of(log_probs, max_drafts)
        assert (proposal.token_ids, proposal.parents) == (expected.token_ids, expected.parents), f"after {tokens}"
    return len(recorder.proposed)


@pytest.mark.parametrize(
    ("width", "has_bias", "settings"),
    [
        (1, True, {"budget": 9}),
        (1, False, {"num_blocks": 20, "preempt_mode": "swap"}),
        (2, True, {"block_size": 1}),
        (3, True, {"num_blocks": 24, "budget": 16}),
        (4, False, {"cache": "radix"}),
    ],
)
def test_eagle_drafts_what_plain_pytorch_says(
    width: int, has_bias: bool, settings: dict[str, Any], tmp_path: Path
) -> None:
    head = TinyEagle(has_bias=has_bias)
    drafter = build(head.write(tmp_path), tree_width=width)
    recorder, engine = run_twice(drafter, TinySettings(**settings), most_drafts=4 if width == 1 else 9)
    assert check(recorder, head, width) > 40
    assert any(row.draft_parents for plan in engine.plans for row in plan.rows) == (width > 1)


def test_a_tree_grows_by_value_and_no_further_than_its_slots() -> None:
    tree = GrowingTree(max_nodes=4, width=2)
    tree.add(-1, [7, 8], [-0.1, -2.0])
    tree.grow(0)
    assert (tree.run, tree.num_new, tree.run_parents()) == ([0, 1], 2, [-1, -1])
    tree.add(0, [5, 6], [-0.3, -0.5])
    tree.add(1, [5, 9], [-0.1, -4.0])
    tree.grow(2)
    assert (tree.run, tree.num_new, tree.run_parents()) == ([0, 1, 2], 1, [-1, -1, 0])
    tree.add(2, [4, 3], [0.0, -9.0])
    tree.grow(6)
    assert tree.num_new == 0
    assert (tree.proposal().token_ids, tree.proposal().parents) == ((7, 5, 4, 6), (-1, 0, 1, 0))
    values = sorted(tree.values, reverse=True)
    assert all(first >= second for first, second in pairwise(values))


def test_needs_are_the_final_state_and_one_layer(tmp_path: Path) -> None:
    needs = build(TinyEagle().write(tmp_path)).needs()
    assert needs.hidden_layers == (FINAL,)
    assert needs.kv_groups == (DraftKVGroup(1, num_kv_heads=4, head_dim=8, lookahead=1, num_heads=4),)


def test_heads_for_other_targets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="hidden size 32 and 80 tokens; this one has 32 and 64"):
        build(TinyEagle(vocab_size=80).write(tmp_path / "vocabulary"))
    folder = TinyEagle().write(tmp_path / "deep")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(ModelError, match="'num_hidden_layers' is 4; heads have 1 layer"):
        build(folder)


def test_a_head_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"set spec_decode\.source"):
        EagleConfig(policy=POLICY).build(drafter_context(MODEL))
