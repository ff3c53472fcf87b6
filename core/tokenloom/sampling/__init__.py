"""Sampling and verification: logits rows in, token ids out. Seeded results do not depend on batch or speculation."""

from tokenloom.sampling.batch import RowGroups, RowTraits, SamplingBatch, SamplingRow
from tokenloom.sampling.constraint import AllowedTokens, ConstrainedRows, allowed_tokens
from tokenloom.sampling.draft_sampler import DraftSampler, DrawnDrafts
from tokenloom.sampling.edits import LogitEdits
from tokenloom.sampling.history import HistoryEdits, RowHistory, TokenHistory
from tokenloom.sampling.logprobs import SampleLogprobs, raw_logprobs
from tokenloom.sampling.processing import process_logits, why_no_token
from tokenloom.sampling.rejection import verify_rejection
from tokenloom.sampling.sampler import SampleResult, TargetProbs, sample, target_probs
from tokenloom.sampling.verify import Verification, verify_chain, verify_tree

__all__ = [
    "AllowedTokens",
    "ConstrainedRows",
    "DraftSampler",
    "DrawnDrafts",
    "HistoryEdits",
    "LogitEdits",
    "RowGroups",
    "RowHistory",
    "RowTraits",
    "SampleLogprobs",
    "SampleResult",
    "SamplingBatch",
    "SamplingRow",
    "TargetProbs",
    "TokenHistory",
    "Verification",
    "allowed_tokens",
    "process_logits",
    "raw_logprobs",
    "sample",
    "target_probs",
    "verify_chain",
    "verify_rejection",
    "verify_tree",
    "why_no_token",
]
