"""Both verifiers leave the target's distribution as it is: chi-square over the first two tokens jointly, V = 8.

The model is a table of logits after each token, the drafter another one. Requests run in steps until two tokens are
out, so that noise used in one step meets the noise of the next. The last tests plant the faults that are known from
speculative decoding and show that this check catches each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tokenloom.sampling import (
    SamplingBatch,
    SamplingRow,
    Verification,
    sample,
    target_probs,
    verify_chain,
    verify_rejection,
    verify_tree,
)
from tokenloom.sampling_params import SamplingParams

VOCAB = 8
SAMPLED = SamplingParams()
TRIALS = 10_000
FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.25},
    "all": {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.1},
}


def random_logits(seed: int, scale: float = 1.0) -> Tensor:
    """[VOCAB, VOCAB]: the logits after each token."""
    return torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


TARGET = random_logits(1)
DRAFT = random_logits(2)


@dataclass(frozen=True)
class Step:
    """One step of A requests with k drafts each.

    Attributes:
        tokens: int64 [A, 1 + k], the last verified token, then the drafts.
        batch: settings of the A (1 + k) rows, with the target's params.
        logits: fp32 [A (1 + k), VOCAB], the target's.
        draft_logits: fp32 [A k, VOCAB], the drafter's.
        draft_probs: what the drafts were drawn from, or None.
    """

    tokens: Tensor
    batch: SamplingBatch
    logits: Tensor
    draft_logits: Tensor
    draft_probs: Tensor | None

    @property
    def drafts(self) -> Tensor:
        return self.tokens[:, 1:].flatten()

    @property
    def cu_num_rows(self) -> Tensor:
        return torch.arange(len(self.tokens) + 1) * self.tokens.shape[1]


Verify = Callable[[Step], Verification]


def by_noise(step: Step) -> Verification:
    return verify_chain(sample(step.logits, step.batch).token_ids, step.drafts, step.cu_num_rows)


def by_rejection(step: Step) -> Verification:
    probs = target_probs(step.logits, step.batch).probs
    return verify_rejection(probs, step.drafts, step.draft_probs, step.cu_num_rows, step.batch)


VERIFIERS: dict[str, Verify] = {"position_noise": by_noise, "rejection": by_rejection}


@dataclass(frozen=True)
class Experiment:
    """How tokens are drafted and judged.

    Attributes:
        params: of the target.
        drafting: "fixed" by a rule; "own": drawn with the drafter's own noise; "shared": with the target's.
        draft_params: of the drafter; `filtered` drafters use the target's.
    """

    verify: Verify
    num_drafts: int = 2
    params: SamplingParams = SAMPLED
    drafting: str = "own"
    draft_params: SamplingParams = SAMPLED
    target: Tensor = TARGET
    draft: Tensor = DRAFT
    trials: int = TRIALS

    def keys(self, params: SamplingParams, trials: Tensor, positions: Tensor) -> SamplingBatch:
        """Rows of independent requests: request i uses the positions from 100 i on."""
        batch = SamplingBatch.build([SamplingRow(params, seed=9)], VOCAB)
        return batch.select([0] * len(trials), (100 * trials + positions).tolist())

    def step(self, trials: Tensor, last: Tensor, positions: Tensor) -> Step:
        """Drafts for requests `trials` whose next token has the output index `positions`."""
        k = self.num_drafts
        tokens, all_probs = last.unsqueeze(1), []
        for depth in range(k):
            if self.drafting == "fixed":
                drafts = (tokens[:, -1] * 3 + 1 + trials) % VOCAB
            else:
                # Own noise is that of positions which nobody else uses.
                ahead = positions + depth + (50 if self.drafting == "own" else 0)
                batch = self.keys(self.draft_params, trials, ahead)
                logits = self.draft[tokens[:, -1]]
                drafts = sample(logits, batch).token_ids
                all_probs.append(target_probs(logits, batch).probs)
            tokens = torch.cat([tokens, drafts.unsqueeze(1)], dim=1)
        rows = torch.arange(k + 1).repeat(len(trials))
        return Step(
            tokens=tokens,
            batch=self.keys(self.params, trials.repeat_interleave(k + 1), positions.repeat_interleave(k + 1) + rows),
            logits=self.target[tokens.flatten()],
            draft_logits=self.draft[tokens[:, :-1].flatten()],
            draft_probs=torch.stack(all_probs, dim=1).flatten(0, 1) if all_probs else None,
        )

    def pairs(self) -> Tensor:
        """The first two tokens of each request behind token 0: int64 [trials, 2]."""
        outputs = torch.full((self.trials, 2 + self.num_drafts + 1), -1)
        lengths = torch.zeros(self.trials, dtype=torch.int64)
        last = torch.zeros(self.trials, dtype=torch.int64)
        while bool((lengths < 2).any()):
            trials = (lengths < 2).nonzero().squeeze(1)
            result = self.verify(self.step(trials, last[trials], lengths[trials]))
            emitted = result.is_emitted.view(len(trials), -1)
            tokens = result.token_ids.view(len(trials), -1)
            for column in range(tokens.shape[1]):
                chosen = trials[emitted[:, column]]
                outputs[chosen, lengths[chosen]] = tokens[emitted[:, column], column]
                lengths[chosen] += 1
                last[chosen] = tokens[emitted[:, column], column]
        return outputs[:, :2]


def chi_square_limit(num_free: int) -> float:
    """About the 0.9999 quantile of the chi-square distribution (Wilson and Hilferty)."""
    part = 2.0 / (9.0 * num_free)
    return num_free * (1.0 - part + 3.719 * math.sqrt(part)) ** 3


def chi_square(pairs: Tensor, target: Tensor, params: SamplingParams, plain: Any) -> tuple[float, int]:
    """The statistic of pairs against the documented rules in double precision, and its degrees of freedom.

    Pairs that cannot be give an infinite one. Rare pairs share one cell.
    """
    after = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    for token in range(VOCAB):
        kept = plain.kept(target[token].tolist(), SamplingRow(params, seed=0))
        weights = {token_id: math.exp(score) for token_id, score in kept.items()}
        for token_id, weight in weights.items():
            after[token, token_id] = weight / sum(weights.values())
    expected = (after[0].unsqueeze(1) * after).flatten() * len(pairs)
    counts = torch.bincount(pairs[:, 0] * VOCAB + pairs[:, 1], minlength=VOCAB * VOCAB).double()
    if bool((counts[expected == 0] > 0).any()):
        return math.inf, 1
    is_rare = expected < 10
    cells = [(float(counts[is_rare].sum()), float(expected[is_rare].sum()))] if float(expected[is_rare].sum()) else []
    cells += list(zip(counts[~is_rare].tolist(), expected[~is_rare].tolist(), strict=True))
    return sum((count - mean) ** 2 / mean for count, mean in cells), len(cells) - 1


def assert_exact(experiment: Experiment, plain: Any) -> None:
    statistic, num_free = chi_square(experiment.pairs(), experiment.target, experiment.params, plain)
    limit = chi_square_limit(num_free)
    assert statistic < limit, f"chi-square {statistic:.1f} exceeds {limit:.1f} at {num_free} degrees of freedom"


@pytest.mark.parametrize("num_drafts", range(5))
@pytest.mark.parametrize("drafting", ["fixed", "own", "shared"])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_speculation_leaves_the_distribution(verifier: str, drafting: str, num_drafts: int, plain: Any) -> None:
    assert_exact(Experiment(VERIFIERS[verifier], num_drafts, drafting=drafting), plain)


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("side", ["target", "both"])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_filters_leave_the_distribution_that_they_define(verifier: str, side: str, filters: str, plain: Any) -> None:
    """Whether the drafter filters, too, or drafts what the target cannot say."""
    params = SamplingParams(**FILTERS[filters])
    draft_params = params if side == "both" else SamplingParams()
    drafting = "shared" if side == "both" else "own"
    assert_exact(Experiment(VERIFIERS[verifier], 2, params, drafting, draft_params), plain)


@pytest.mark.parametrize("filters", ["top_k", "all"])
@pytest.mark.parametrize("num_drafts", [1, 4])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_filters_leave_the_distribution_with_fixed_drafts(
    verifier: str, num_drafts: int, filters: str, plain: Any
) -> None:
    params = SamplingParams(**FILTERS[filters])
    assert_exact(Experiment(VERIFIERS[verifier], num_drafts, params, "fixed"), plain)


def test_sampled_drafts_may_count_as_one_hot(plain: Any) -> None:
    """Whatever chose a draft: accepting with p and resampling the rest is exact. It only accepts less."""

    def without_probs(step: Step) -> Verification:
        return by_rejection(replace(step, draft_probs=None))

    for drafting in ("own", "shared"):
        assert_exact(Experiment(without_probs, drafting=drafting), plain)


def test_acceptance_with_probabilities_is_the_overlap() -> None:
    """As many drafts stay as can: the sum over min(p, q). Position noise and one-hot drafts keep fewer."""
    trials = torch.arange(TRIALS)
    zeros = torch.zeros_like(trials)
    step = Experiment(by_rejection, 1).step(trials, zeros, zeros)
    overlap = float(torch.minimum(TARGET[0].softmax(-1), DRAFT[0].softmax(-1)).sum())
    rates = {
        "rejection": float(by_rejection(step).num_accepted_tokens.double().mean()),
        "one_hot": float(by_rejection(replace(step, draft_probs=None)).num_accepted_tokens.double().mean()),
        "noise": float(by_noise(step).num_accepted_tokens.double().mean()),
    }
    assert abs(rates["rejection"] - overlap) < 0.02
    assert max(rates["one_hot"], rates["noise"]) < overlap - 0.1
    shared = Experiment(by_noise, 1, drafting="shared").step(trials, zeros, zeros)
    assert rates["noise"] + 0.1 < float(by_noise(shared).num_accepted_tokens.double().mean()) <= overlap + 0.02


@pytest.mark.parametrize("filters", ["plain", "all"])
def test_trees_under_position_noise_leave_the_distribution(filters: str, plain: Any) -> None:
    """Two children of the root, and below each the two likeliest of its own: three tokens a step at most."""
    params = SamplingParams(**FILTERS[filters])
    children = DRAFT.topk(2, dim=-1).indices  # [VOCAB, 2]
    parents = torch.tensor([-1, -1, 0, 0, 1, 1])
    depths = torch.tensor([0, 1, 1, 2, 2, 2, 2])
    trials = torch.arange(TRIALS)
    first = children[torch.zeros(TRIALS, dtype=torch.int64)]  # [TRIALS, 2]
    nodes = torch.cat([first, children[first[:, 0]], children[first[:, 1]]], dim=1)  # [TRIALS, 6]
    tokens = torch.cat([torch.zeros(TRIALS, 1, dtype=torch.int64), nodes], dim=1)
    maker = Experiment(by_noise)
    batch = maker.keys(params, trials.repeat_interleave(7), depths.repeat(TRIALS))
    sampled = sample(TARGET[tokens.flatten()], batch).token_ids
    result = verify_tree(sampled, nodes.flatten(), parents.repeat(TRIALS), torch.arange(TRIALS + 1) * 7)
    emitted = result.is_emitted.view(TRIALS, 7)
    rows = result.token_ids.view(TRIALS, 7)
    pair = torch.stack([rows[:, 0], torch.where(emitted[:, 1], rows[:, 1], rows[:, 2])], dim=1)
    # Without an accepted node the next step samples the second token, at its own position.
    is_short = result.num_accepted_tokens == 0
    following = sample(TARGET[pair[:, 0]], maker.keys(params, trials, torch.ones_like(trials))).token_ids
    pair[:, 1] = torch.where(is_short, following, pair[:, 1])
    assert 0.2 < float(is_short.double().mean()) < 0.9
    statistic, num_free = chi_square(pair, TARGET, params, plain)
    assert statistic < chi_square_limit(num_free)


# ---- planted faults: each of them must be seen by the check above ----


def last_row_from(step: Step, result: Verification, weights: Tensor) -> Verification:
    """Draws the tokens of the last rows once more, from weights [A, VOCAB] that need not sum to 1."""
    chosen = (weights.double() / weights.double().sum(dim=-1, keepdim=True)).multinomial(
        1, generator=torch.Generator().manual_seed(len(weights))
    )
    token_ids = result.token_ids.clone()
    token_ids[result.last_row] = chosen.squeeze(1)
    return replace(result, token_ids=token_ids)


def residual_of(step: Step, result: Verification, probs: Tensor) -> tuple[Tensor, Tensor]:
    """max(p - q, 0) at each last row, p where all drafts stayed: [A, VOCAB]; and which rows refused a draft."""
    assert step.draft_probs is not None
    k = step.tokens.shape[1] - 1
    refused = result.num_accepted_tokens < k
    requests = torch.arange(len(step.tokens))
    q = step.draft_probs.view(-1, k, VOCAB)[requests, result.num_accepted_tokens.clamp(max=k - 1)]
    p = probs[result.last_row]
    return torch.where(refused.unsqueeze(1), (p - q).clamp(min=0.0), p), refused


def q_from_bf16(step: Step) -> Verification:
    """The drafts were drawn in fp32, the probabilities were computed in bf16."""
    return by_rejection(replace(step, draft_probs=step.draft_logits.bfloat16().softmax(dim=-1).float()))


def q_without_filters(step: Step) -> Verification:
    """The drafts were drawn after the filters, the probabilities are those before them."""
    return by_rejection(replace(step, draft_probs=step.draft_logits.softmax(dim=-1)))


def one_hot_acceptance(step: Step) -> Verification:
    """Sampled drafts are accepted as if they were certain, but their distribution is taken out of the residual."""
    result = by_rejection(replace(step, draft_probs=None))
    return last_row_from(step, result, residual_of(step, result, target_probs(step.logits, step.batch).probs)[0])


def residual_without_filters(step: Step) -> Verification:
    """Drafts are judged by the filtered target, the residual comes from the unfiltered one."""
    result = by_rejection(step)
    residual, refused = residual_of(step, result, step.logits.softmax(dim=-1))
    probs = target_probs(step.logits, step.batch).probs[result.last_row]
    return last_row_from(step, result, torch.where(refused.unsqueeze(1), residual, probs))


def residual_not_normalised(step: Step) -> Verification:
    """A uniform number from 0 to 1 walks up a residual that sums to less: what is left falls to the last token."""
    result = by_rejection(step)
    residual, _ = residual_of(step, result, target_probs(step.logits, step.batch).probs)
    u = torch.rand(len(residual), 1, generator=torch.Generator().manual_seed(len(residual)))
    token_ids = result.token_ids.clone()
    token_ids[result.last_row] = (residual.cumsum(dim=-1) < u).sum(dim=-1).clamp(max=VOCAB - 1)
    return replace(result, token_ids=token_ids)


def bonus_from_the_row_before(step: Step) -> Verification:
    """If all drafts stay, the bonus token is drawn from the row of the last draft."""
    result = by_rejection(step)
    probs = target_probs(step.logits, step.batch).probs
    residual, refused = residual_of(step, result, probs)
    return last_row_from(step, result, torch.where(refused.unsqueeze(1), residual, probs[result.last_row - 1]))


def residual_is_the_target(step: Step) -> Verification:
    """After a refusal the target is sampled as it is."""
    result = by_rejection(step)
    return last_row_from(step, result, target_probs(step.logits, step.batch).probs[result.last_row])


def coin_of_the_row_behind(step: Step) -> Verification:
    """Every draft is judged by the row that follows it."""
    probs = target_probs(step.logits, step.batch).probs.view(*step.tokens.shape, VOCAB).roll(-1, dims=1).flatten(0, 1)
    return verify_rejection(probs, step.drafts, step.draft_probs, step.cu_num_rows, step.batch)


def everything_accepted(step: Step) -> Verification:
    """All drafts stay."""
    return by_rejection(replace(step, draft_probs=torch.full((len(step.drafts), VOCAB), 1e-9)))


PLANTED = (
    q_without_filters,
    one_hot_acceptance,
    residual_without_filters,
    residual_not_normalised,
    bonus_from_the_row_before,
    residual_is_the_target,
    coin_of_the_row_behind,
    everything_accepted,
)


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.__name__)
def test_planted_fault_is_seen(fault: Verify, plain: Any) -> None:
    params = SamplingParams(**FILTERS["top_k"])
    healthy = Experiment(by_rejection, 1, params, "own", params)
    assert_exact(healthy, plain)
    with pytest.raises(AssertionError, match="chi-square"):
        assert_exact(replace(healthy, verify=fault), plain)


@pytest.mark.slow
def test_probabilities_in_bf16_are_seen(plain: Any) -> None:
    """Logits of the size that models have are off by several percent in bf16; it takes many trials to see that."""
    params = SamplingParams(temperature=1.0)
    healthy = Experiment(by_rejection, 1, params, draft=DRAFT + 24.0, trials=400_000)
    assert_exact(healthy, plain)
    with pytest.raises(AssertionError, match="chi-square"):
        assert_exact(replace(healthy, verify=q_from_bf16), plain)
