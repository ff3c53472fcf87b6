"""The synthetic drafter: right at the rates asked for about what it has heard, silent about everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tokenloom.compose import compose_config
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import DraftBatch, DrafterNeeds, DraftSampling, Proposal
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.engine_harness import ChosenDrafts
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom.testing.tiny_engine import TinyEngine
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig
from tokenloom_spec_decode.synthetic import SyntheticConfig, SyntheticDrafter

MODEL = TinyDecoder()
POLICY = PluginChoice("spec_decode.policy", "fixed", FixedPolicyConfig())
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0)


def _drafter(*acceptance: float, max_known_tokens: int = 1000) -> SyntheticDrafter:
    return SyntheticDrafter(64, acceptance or (1.0,), max_known_tokens)


def _ask(
    drafter: SyntheticDrafter,
    token_ids: Sequence[int],
    *,
    name: str = "r",
    params: SamplingParams = GREEDY,
    seed: int = 0,
    max_drafts: int = 4,
) -> Proposal:
    """A request with a prompt of two tokens."""
    sampling = DraftSampling(params, seed, 0, len(token_ids) - 2)
    batch = DraftBatch([name], [np.array(token_ids, np.int32)], [2], [max_drafts], [True], sampling=[sampling])
    (proposal,) = drafter.propose(batch)
    return proposal


def _teach(drafter: SyntheticDrafter, *token_ids: int, **options: Any) -> None:
    assert _ask(drafter, token_ids, name="taught", **options) == Proposal()
    drafter.forget(["taught", "unknown"])


def test_answers_heard_before_are_repeated() -> None:
    drafter = _drafter()
    _teach(drafter, 1, 2, 3, 4, 5, 6, 7)
    assert _ask(drafter, [1, 2, 3]).token_ids == (4, 5, 6, 7)
    assert _ask(drafter, [1, 2, 3], max_drafts=2).token_ids == (4, 5)
    assert _ask(drafter, [1, 2, 3, 4, 5, 6]).token_ids == (7,)
    assert _ask(drafter, [1, 2, 3, 9]).token_ids == (), "another answer"
    assert _ask(drafter, [2, 1, 3]).token_ids == (), "another prompt"
    assert _ask(drafter, [1, 2, 3], max_drafts=0).token_ids == ()


def test_mistakes_are_told_by_depth() -> None:
    drafter = _drafter(1.0, 0.0, 1.0)
    _teach(drafter, 1, 2, 3, 4, 5, 63, 7)
    assert _ask(drafter, [1, 2, 3]).token_ids == (4, 6, 63, 7)
    assert _ask(drafter, [1, 2, 3, 4]).token_ids == (5, 0, 7), "another token of the vocabulary"


def test_an_answer_that_chance_gave_is_that_of_its_seed() -> None:
    drafter = _drafter()
    _teach(drafter, 1, 2, 3, 4, 5, params=SAMPLED, seed=7)
    assert _ask(drafter, [1, 2, 3], params=SAMPLED, seed=7, name="a").token_ids == (4, 5)
    assert _ask(drafter, [1, 2, 3], params=SAMPLED, seed=8, name="b").token_ids == ()
    assert _ask(drafter, [1, 2, 3], params=GREEDY, seed=7, name="c").token_ids == ()


def test_the_longest_answer_stays_and_a_new_one_takes_over() -> None:
    drafter = _drafter()
    _teach(drafter, 1, 2, 3, 4, 5, 6)
    _ask(drafter, [1, 2, 3, 4], name="cut")
    drafter.forget(["cut"])
    assert _ask(drafter, [1, 2, 3]).token_ids == (4, 5, 6)
    _ask(drafter, [1, 2, 8, 9], name="other")
    drafter.forget(["other"])
    assert _ask(drafter, [1, 2, 8]).token_ids == (9,)


def test_what_it_knows_is_bounded() -> None:
    drafter = _drafter(max_known_tokens=20)
    for first in range(30):
        _teach(drafter, first, 2, 3, 4, 5, 6)
    known = [first for first in range(30) if _ask(drafter, [first, 2, 3], name=str(first)).token_ids]
    assert known == [27, 28, 29]


def _run(engine: TinyEngine, turn: str, count: int, **params: Any) -> list[list[int]]:
    for number in range(count):
        engine.add(f"{turn}{number}", [number + 1, 7], SamplingParams(max_tokens=40, **params), seed=number)
    outputs = engine.run()
    return [outputs[f"{turn}{number}"] for number in range(count)]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_rates_are_those_asked_for_and_the_output_is_the_targets_own(temperature: float) -> None:
    wanted = (0.9, 0.6, 0.3)
    drafter = SyntheticDrafter(MODEL.vocab_size, wanted, 100_000)
    engine = TinyEngine(MODEL, drafter, ChosenDrafts(lambda request, _: 3))
    first = _run(engine, "first", 40, temperature=temperature)
    assert engine.engine.stats.num_draft_tokens == 0
    assert _run(engine, "again", 40, temperature=temperature) == first
    stats = engine.engine.stats
    rates = [stats.accepted_by_position[depth] / stats.tried_by_position[depth] for depth in range(3)]
    assert rates == pytest.approx(wanted, abs=0.08)
    assert stats.tried_by_position[0] == stats.num_proposals
    assert stats.tried_by_position[1] <= stats.accepted_by_position[0]


def test_preempted_requests_are_foreseen_from_where_they_stood() -> None:
    drafter = _drafter()
    _teach(drafter, 1, 2, 3, 4, 5, 6, 7)
    assert _ask(drafter, [1, 2, 3, 4]).token_ids == (5, 6, 7)
    drafter.forget(["r"])
    assert _ask(drafter, [1, 2, 3, 4, 5]).token_ids == (6, 7)


def test_simulations_take_the_rates() -> None:
    config = compose_config(["spec_decode=synthetic", "spec_decode.acceptance=[0.5,0.25]"]).engine.spec_decode.config
    assert isinstance(config, SyntheticConfig)
    assert config.simulated_acceptance() == (0.5, 0.25)
    assert config.draft_policy() is not None


def test_synthetic_needs_nothing_of_the_target() -> None:
    assert _drafter().needs() == DrafterNeeds()


@pytest.mark.parametrize("values", [{"acceptance": ()}, {"acceptance": (1.1,)}, {"max_known_tokens": 0}])
def test_synthetic_config_refuses(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SyntheticConfig(policy=POLICY, **values)
