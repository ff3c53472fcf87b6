"""Memory that a step needs beside weights and KV: estimated from sizes, before anything is loaded."""

from __future__ import annotations

from typing import cast

import torch

from tokenloom.engine_config import EngineConfig
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.interfaces.spec_decode import SpecDecodeConfig
from tokenloom.model_config import ModelConfig

__all__ = ["activation_peak_bytes", "max_waiting_states", "workspace_bytes"]

_WAITING_STEPS = 16
_MOST_WAITING = 1024
"""A drafter hears of so many steps of decoding at once where nothing is drafted, but of no more tokens than that."""


def activation_peak_bytes(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, num_captured: int = 0) -> int:
    """Hidden states of a full step, and its logits with the copies that sampling makes.

    A drafter runs when those are gone, and needs less. But the states of the `num_captured` layers that it reads stay
    until then, and are copied once for it, and once more while they wait for it.
    """
    scheduler = cast(SchedulerConfig, config.scheduler.config)
    per_token = 4 * model.hidden_size + (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    per_token += 3 * model.intermediate_size + 3 * num_captured * model.hidden_size
    # Logits in fp32, and one copy that sampling works on; verification needs a row for each draft. Rejection
    # sampling has scores and probabilities beside them, and those of the drafts.
    drafting = cast(SpecDecodeConfig, config.spec_decode.config)
    num_rows = scheduler.max_num_seqs if drafting.draft_policy() is None else scheduler.max_num_batched_tokens
    num_copies = 5 if drafting.verifier == "rejection" else 2
    logits = num_copies * 4 * min(num_rows, scheduler.max_num_batched_tokens) * model.vocab_size
    return scheduler.max_num_batched_tokens * per_token * dtype.itemsize + logits


def workspace_bytes(scheduler: SchedulerConfig, max_model_len: int) -> int:
    """Persistent host and device buffers of the batch."""
    return scheduler.max_num_seqs * (max_model_len + 1) * 4 + scheduler.max_num_batched_tokens * 40


def max_waiting_states(scheduler: SchedulerConfig) -> int:
    """Most tokens whose states wait for a drafter; no more than a step may have, which a pass has room for."""
    return min(_WAITING_STEPS * scheduler.max_num_seqs, _MOST_WAITING, scheduler.max_num_batched_tokens)
