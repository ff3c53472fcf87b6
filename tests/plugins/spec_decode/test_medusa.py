"""Medusa heads: each layout drafts what plain PyTorch says, chains and trees, alone and in the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.plugins.spec_decode.tiny_medusa import LAYOUTS, TinyMedusa
from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import DraftBatch, Drafter, DrafterNeeds, Proposal
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing import SpecDecodeSuite
from tokenloom.testing.drafter_rig import NoDrafts
from tokenloom.testing.engine_harness import ChosenDrafts
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom.testing.tiny_engine import TinyEngine, drafter_context
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig
from tokenloom_spec_decode.medusa import MedusaConfig

MODEL = TinyDecoder()
CONTEXT = drafter_context(MODEL)
POLICY = PluginChoice("spec_decode.policy", "fixed", FixedPolicyConfig())
TREE = ((0,), (1,), (0, 0), (0, 2), (1, 0), (0, 0, 1))
FINAL = -1


class TestMedusa(SpecDecodeSuite):
    plugin = "medusa"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _heads(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.settings = {"source": str(TinyMedusa().write(tmp_path_factory.mktemp("heads")))}


def target_head() -> torch.Tensor:
    """[V, H] of the tiny target, got by asking it."""
    return MODEL.compute_logits(torch.eye(MODEL.hidden_size)).T


def build(folder: Path, **settings: Any) -> Drafter:
    return MedusaConfig(source=str(folder), policy=POLICY, **settings).build(CONTEXT)


def batch(hidden: list[torch.Tensor], max_drafts: list[int], chain_only: list[bool]) -> DraftBatch:
    """Requests whose new tokens have these final states, [rows, H] each."""
    cu_hidden = np.cumsum([0, *map(len, hidden)]).astype(np.int64)
    tokens = [np.arange(5, dtype=np.int32) for _ in hidden]
    return DraftBatch(
        request_ids=[str(number) for number in range(len(hidden))],
        token_ids=tokens,
        num_prompt_tokens=[3] * len(hidden),
        max_drafts=max_drafts,
        chain_only=chain_only,
        first_positions=[0] * len(hidden),
        hidden_states={FINAL: torch.cat(hidden)},
        cu_hidden=cu_hidden,
    )


def states(*rows: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(count, MODEL.hidden_size, generator=generator) for count in rows]


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_medusa_drafts_what_plain_pytorch_says(layout: str, num_layers: int, tmp_path: Path) -> None:
    heads = TinyMedusa(num_layers=num_layers)
    drafter = build(heads.write(tmp_path, layout), tree=TREE)
    assert drafter.needs() == DrafterNeeds(hidden_layers=(FINAL,))
    hidden = states(4, 1, 7)
    chain, tree, cut = drafter.propose(batch(hidden, [3, 6, 4], [True, False, False]))
    expected = [heads.guesses(layout, rows[-1], target_head(), 3) for rows in hidden]
    assert chain == Proposal(tuple(ranks[0] for ranks in expected[0]))
    whole = tuple(expected[1][len(path) - 1][path[-1]] for path in TREE)
    assert tree == Proposal(whole, (-1, -1, 0, 0, 1, 2))
    assert cut.token_ids == tuple(expected[2][len(path) - 1][path[-1]] for path in TREE[:4])
    assert cut.parents == (-1, -1, 0, 0)


def test_medusa_cuts_a_chain_to_what_is_asked_for(tmp_path: Path) -> None:
    heads = TinyMedusa()
    drafter = build(heads.write(tmp_path))
    hidden = states(2, 2, 2)
    proposals = drafter.propose(batch(hidden, [0, 1, 9], [True] * 3))
    assert [len(proposal.token_ids) for proposal in proposals] == [0, 1, heads.num_heads]
    assert drafter.propose(batch(hidden[:1], [0], [True])) == [Proposal()]


def test_a_tree_without_branches_is_a_chain(tmp_path: Path) -> None:
    drafter = build(TinyMedusa().write(tmp_path), tree=((0,), (0, 0), (1,)))
    chain, tree = drafter.propose(batch(states(1, 1), [2, 3], [False, False]))
    assert (chain.parents, tree.parents) == ((), (-1, 0, -1))


def test_measured_accuracies_shape_the_tree(tmp_path: Path) -> None:
    """Config before checkpoint, checkpoint before the rule of thumb."""
    stated = {"medusa_head_accuracies": [[0.5, 0.4, 0.3], [0.1]]}
    folder = TinyMedusa(config=stated).write(tmp_path / "stated")

    def parents(folder: Path, **settings: Any) -> tuple[int, ...]:
        return build(folder, **settings).propose(batch(states(1), [4], [False]))[0].parents

    assert parents(folder) == (-1, -1, -1, 0)
    assert parents(folder, accuracies=((0.9, 0.1), (0.9,), (0.9,))) == (-1, 0, 1, -1)
    assert parents(TinyMedusa().write(tmp_path / "silent")) == (-1, 0, -1, 1)


@pytest.mark.parametrize("chain_only", [False, True])
def test_drafts_of_heads_that_know_something_are_accepted(chain_only: bool, tmp_path: Path) -> None:
    """Heads that repeat the target's own next guess: some are right, and output stays the target's."""
    folder = TinyMedusa(seed=5).write(tmp_path, "target's head")
    prompt, params = [3, 1, 4, 1, 5], SamplingParams(temperature=0.0, max_tokens=40)
    plain = TinyEngine(MODEL, NoDrafts())
    plain.add("r", prompt, params)
    verifier = "rejection" if chain_only else "position_noise"
    settings = SpecDecodeSuite().settings_of(verifier=verifier)
    wide = tuple((rank,) for rank in range(20)) + tuple((rank, 0) for rank in range(20))
    engine = TinyEngine(MODEL, build(folder, tree=wide), ChosenDrafts(lambda _request, _running: 40), settings)
    engine.add("r", prompt, params)
    assert engine.run() == plain.run()
    if not chain_only:
        assert engine.engine.stats.num_accepted_tokens > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tree": ((0,), (0, 0, 0))}, r"path \[0, 0, 0\] must stand behind its parent \[0, 0\]"),
        ({"tree": ((0,), (0,))}, r"got \[0\] twice"),
        ({"tree": ((-1,),)}, "distinct paths of ranks from 0 on"),
        ({"tree": ((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0))}, "is 4 deep; spec_decode.source holds 3 heads"),
        ({"tree": ((64,),)}, "uses guess 64; the heads tell 64 tokens apart"),
        ({"accuracies": ((0.5,),) * 4}, "has 4 heads; spec_decode.source holds 3"),
    ],
)
def test_trees_that_the_heads_cannot_give_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = TinyMedusa().write(tmp_path)
    with pytest.raises(ConfigError, match=message):
        build(folder, **settings)


def test_medusa_without_heads_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"set spec_decode\.source"):
        MedusaConfig(policy=POLICY).build(CONTEXT)
