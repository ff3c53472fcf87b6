"""Sampling and verification: logits rows in, token ids out. Seeded results do not depend on batch or speculation."""

from tokenloom.sampling.batch import LogitEdits, RowGroups, RowTraits, SamplingBatch, SamplingRow
from tokenloom.sampling.constraint import AllowedTokens, ConstrainedRows, allowed_tokens
from tokenloom.sampling.logprobs import SampleLogprobs, raw_logprobs
from tokenloom.sampling.rejection import verify_rejection
from tokenloom.sampling.sampler import SampleResult, TargetProbs, sample, target_probs
from tokenloom.sampling.verify import Verification, verify_chain, verify_tree

__all__ = [
    "AllowedTokens",
    "ConstrainedRows",
    "LogitEdits",
    "RowGroups",
    "RowTraits",
    "SampleLogprobs",
    "SampleResult",
    "SamplingBatch",
    "SamplingRow",
    "TargetProbs",
    "Verification",
    "allowed_tokens",
    "raw_logprobs",
    "sample",
    "target_probs",
    "verify_chain",
    "verify_rejection",
    "verify_tree",
]
