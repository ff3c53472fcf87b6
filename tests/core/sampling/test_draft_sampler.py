"""The draws lent to drafters: the target's own noise, and the distribution that they really come from."""

from __future__ import annotations

import pytest
import torch

from tokenloom.interfaces.spec_decode import DraftSampling
from tokenloom.sampling import DraftSampler, SamplingBatch, SamplingRow, sample, target_probs
from tokenloom.sampling_params import SamplingParams

VOCAB = 40
PARAMS = (
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=9, top_p=0.8),
    SamplingParams(temperature=2.0, min_p=0.1),
)


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_drafts_are_what_the_target_would_sample_from_the_same_logits(depth: int) -> None:
    logits = torch.randn(len(PARAMS), VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    sampling = [DraftSampling(params, seed=-3 + i, choice=i, position=7 * i) for i, params in enumerate(PARAMS)]
    drawn = DraftSampler(sampling, VOCAB).draw(logits, depth)
    rows = [SamplingRow(s.params, s.seed, s.choice, s.position + depth) for s in sampling]
    batch = SamplingBatch.build(rows, VOCAB)
    assert torch.equal(drawn.token_ids, sample(logits, batch).token_ids)
    assert torch.equal(drawn.probs, target_probs(logits, batch).probs)


def test_depths_have_noise_of_their_own() -> None:
    sampler = DraftSampler([DraftSampling(PARAMS[0], 1, 0, 0)], VOCAB)
    assert len({int(sampler.draw(torch.zeros(1, VOCAB), depth).token_ids) for depth in range(20)}) > 10


def test_options_that_look_at_other_tokens_are_left_to_the_target() -> None:
    params = SamplingParams(logit_bias={3: 5.0}, allowed_token_ids=[1, 2])
    drawn = DraftSampler([DraftSampling(params, 1, 0, 0)], VOCAB).draw(torch.zeros(1, VOCAB), 0)
    assert torch.allclose(drawn.probs, torch.full((1, VOCAB), 1 / VOCAB))
