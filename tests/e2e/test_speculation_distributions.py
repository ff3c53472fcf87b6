"""Through the whole engine: tokens that were speculated on are distributed as the documented sampling rules say.

A tiny model with 8 tokens; thousands of requests of different seeds, all with one prompt. The second and third output
token (the first comes from the prompt and has no drafts) are compared jointly, by chi-square, with probabilities worked
out in plain Python from the model's own logits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any, final

import pytest
import torch

from tokenloom.interfaces.spec_decode import DraftBatch, Drafter, DrafterNeeds, Proposal, Verifier
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.draft_stubs import DrawingDrafter
from tokenloom.testing.drafter_rig import NoDrafts
from tokenloom.testing.drawn_drafts import chi_square_limit
from tokenloom.testing.engine_harness import ChosenDrafts
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom.testing.tiny_engine import TinyEngine, TinySettings
from tokenloom_attention.torch_sdpa import TorchSdpaConfig

VOCAB = 8
MODEL = TinyDecoder(VOCAB, seed=3, scale=1.3)
TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(4))
PROMPT = (1, 2, 2)
TRIALS = 2000
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},
    "repetition": {"repetition_penalty": 1.8},
    "presence": {"presence_penalty": 1.2},
    "frequency": {"frequency_penalty": -0.9},
    "all": {
        "temperature": 0.8,
        "top_k": 6,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {3: 1.0, 5: -0.5},
    },
}


@final
class LogitsReader(Drafter):
    """Reads the final hidden state behind each request's prompt, and proposes nothing."""

    def __init__(self) -> None:
        self.logits: dict[tuple[int, ...], list[float]] = {}

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds(hidden_layers=(-1,))

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        assert batch.cu_hidden is not None
        for token_ids, end in zip(batch.token_ids, batch.cu_hidden[1:], strict=True):
            context = tuple(token_ids[:-1].tolist())
            hidden = batch.hidden_states[-1][int(end) - 1 : int(end)]
            self.logits[context] = MODEL.compute_logits(hidden)[0].tolist()
        return [Proposal()] * len(batch.request_ids)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Keeps no state of requests."""


@cache
def model_logits() -> dict[tuple[int, ...], list[float]]:
    """The model's raw logits after the prompt and up to two tokens more."""
    reader = LogitsReader()
    engine = TinyEngine(MODEL, reader, ChosenDrafts(lambda request, _: 1), TinySettings(max_num_seqs=64, budget=512))
    contexts = [PROMPT + more for count in range(3) for more in product(range(VOCAB), repeat=count)]
    for context in contexts:
        engine.add(str(context), context, SamplingParams(temperature=0.0, max_tokens=3))
    engine.run()
    return {context: reader.logits[context] for context in contexts}


def plain_probs(outputs: tuple[int, ...], params: SamplingParams) -> list[float]:
    """The distribution of the next token by the documented rules, one number at a time."""
    logits = list(model_logits()[PROMPT + outputs])
    counts = Counter(outputs)
    for token in range(VOCAB):
        if token in PROMPT or token in counts:
            penalty = params.repetition_penalty
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        logits[token] -= counts[token] * params.frequency_penalty + (counts[token] > 0) * params.presence_penalty
        logits[token] += params.logit_bias.get(token, 0.0)
    weights = {token: math.exp((logit - max(logits)) / params.temperature) for token, logit in enumerate(logits)}
    ranked = sorted((token for token in weights if weights[token] >= params.min_p), key=lambda t: -weights[t])
    ranked = ranked[: params.top_k] if params.top_k > 0 else ranked
    total = sum(weights[token] for token in ranked)
    kept: list[int] = []
    for token in ranked:
        if kept and sum(weights[t] for t in kept) >= params.top_p * total:
            break
        kept.append(token)
    mass = sum(weights[token] for token in kept)
    return [weights[token] / mass if token in kept else 0.0 for token in range(VOCAB)]


def expected_pairs(params: SamplingParams) -> dict[tuple[int, int], float]:
    """Probability of each (second, third) token."""
    expected: Counter[tuple[int, int]] = Counter()
    for first, p_first in enumerate(plain_probs((), params)):
        for second, p_second in enumerate(plain_probs((first,), params) if p_first else ()):
            for third, p_third in enumerate(plain_probs((first, second), params) if p_second else ()):
                expected[second, third] += p_first * p_second * p_third
    return dict(expected)


def chi_square(found: Counter[tuple[int, int]], expected: dict[tuple[int, int], float]) -> tuple[float, float]:
    """The statistic, infinite if something impossible was found, and its limit. Rare pairs share a cell."""
    total = sum(found.values())
    if any(not expected[pair] for pair in found):
        return math.inf, 0.0
    cells: list[tuple[float, float]] = []
    rare = [0.0, 0.0]
    for pair, probability in expected.items():
        if probability * total >= 8:
            cells.append((found[pair], probability * total))
        else:
            rare = [rare[0] + found[pair], rare[1] + probability * total]
    if rare[1] >= 1:
        cells.append((rare[0], rare[1]))
    return sum((count - mean) ** 2 / mean for count, mean in cells), chi_square_limit(max(1, len(cells) - 1))


def run(drafter: Drafter, params: SamplingParams, num_drafts: int, verifier: Verifier, budget: int = 512) -> TinyEngine:
    def attention(context: Any) -> Any:
        return TorchSdpaConfig().build(context)

    settings = TinySettings(
        max_num_seqs=128, budget=budget, verifier=verifier, attention=attention, num_blocks=600, checks="off"
    )
    engine = TinyEngine(MODEL, drafter, ChosenDrafts(lambda request, _: num_drafts), settings)
    for seed in range(TRIALS):
        # One request in eight is greedy, so that steps are mixed.
        own = params if seed % 8 else SamplingParams(temperature=0.0, max_tokens=3)
        engine.add(str(seed), PROMPT, own.with_changes(max_tokens=max(4, num_drafts + 2)), seed=seed)
    engine.run()
    return engine


def assert_distributed(engine: TinyEngine, params: SamplingParams) -> None:
    pairs = Counter((ids[1], ids[2]) for name, ids in engine.outputs.items() if int(name) % 8)
    statistic, limit = chi_square(pairs, expected_pairs(params))
    assert statistic < limit, f"chi-square {statistic:.1f} exceeds {limit:.1f}"


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("verifier", ["position_noise", "rejection"])
def test_options_keep_their_distribution_under_speculation(verifier: Verifier, options: str) -> None:
    params = SamplingParams(**OPTIONS[options])
    engine = run(DrawingDrafter(TABLE), params, 3, verifier)
    assert_distributed(engine, params)
    assert engine.engine.stats.num_accepted_tokens > TRIALS / 5


@pytest.mark.slow
@pytest.mark.parametrize("options", ["plain", "repetition", "frequency", "all"])
def test_options_keep_their_distribution_without_speculation(options: str) -> None:
    params = SamplingParams(**OPTIONS[options])
    assert_distributed(run(NoDrafts(), params, 0, "position_noise"), params)


@pytest.mark.slow
@pytest.mark.parametrize("num_drafts", [1, 2, 4])
@pytest.mark.parametrize("has_probs", [True, False])
def test_rejection_keeps_the_distribution_for_every_draft_length(has_probs: bool, num_drafts: int) -> None:
    """With a budget that cuts drafts, too: their probabilities are cut with them."""
    params = SamplingParams(temperature=0.9)
    engine = run(DrawingDrafter(TABLE, has_probs=has_probs), params, num_drafts, "rejection", budget=201)
    assert_distributed(engine, params)
    verified = {len(row.draft_token_ids) for plan in engine.plans for row in plan.rows}
    assert verified >= set(range(num_drafts + 1))


@final
class LyingDrafter(Drafter):
    """Draws at temperature 1 and claims the probabilities of another one."""

    def __init__(self, sharpness: float) -> None:
        self._inner = DrawingDrafter(TABLE)
        self._sharpness = sharpness

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        return [
            Proposal(p.token_ids, probs=None if p.probs is None else (p.probs.log() * self._sharpness).softmax(dim=-1))
            for p in self._inner.propose(batch)
        ]

    def forget(self, request_ids: Sequence[str]) -> None:
        """Keeps no state."""


@pytest.mark.slow
def test_false_probabilities_are_noticed_by_this_test() -> None:
    """And do no harm under position noise, which does not read them."""
    params = SamplingParams()
    assert_distributed(run(LyingDrafter(0.4), params, 2, "position_noise"), params)
    with pytest.raises(AssertionError, match="chi-square"):
        assert_distributed(run(LyingDrafter(0.4), params, 2, "rejection"), params)
