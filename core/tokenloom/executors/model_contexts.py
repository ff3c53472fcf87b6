"""What an executor tells the capability check and the attention plugin about the model that it is going to run."""

from __future__ import annotations

from typing import cast

import torch

from tokenloom.engine_config import EngineConfig
from tokenloom.interfaces.attention import AttentionContext
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.interfaces.executor import ModelTraits
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.model_config import ModelConfig

__all__ = ["attention_context", "draft_attention_context", "model_traits"]


def model_traits(model: ModelConfig, device: torch.device, dtype: torch.dtype) -> ModelTraits:
    """What plugins are checked against."""
    return ModelTraits(
        head_dim=model.head_dim,
        has_window=any(window is not None for window in model.windows),
        has_soft_cap=model.attn_soft_cap is not None,
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
    )


def attention_context(
    config: EngineConfig, model: ModelConfig, device: torch.device, dtype: torch.dtype, max_model_len: int
) -> AttentionContext:
    """What an attention plugin is built with."""
    heads = (model.num_heads, model.num_kv_heads, model.head_dim)
    num_tokens = cast(SchedulerConfig, config.scheduler.config).max_num_batched_tokens
    return _attention_context(config, heads, num_tokens, device, dtype, max_model_len)


def draft_attention_context(
    config: EngineConfig, heads: tuple[int, int, int], device: torch.device, dtype: torch.dtype, max_model_len: int
) -> AttentionContext:
    """The same for a drafter with `heads`: query heads, KV heads and head_dim.

    A pass of it may hold the tokens of a step, and for each request one more: the token that the step has sampled.
    """
    scheduler = cast(SchedulerConfig, config.scheduler.config)
    num_tokens = scheduler.max_num_batched_tokens + scheduler.max_num_seqs
    return _attention_context(config, heads, num_tokens, device, dtype, max_model_len)


def _attention_context(
    config: EngineConfig,
    heads: tuple[int, int, int],
    num_tokens: int,
    device: torch.device,
    dtype: torch.dtype,
    max_model_len: int,
) -> AttentionContext:
    num_heads, num_kv_heads, head_dim = heads
    return AttentionContext(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=cast(CacheConfig, config.cache.config).block_size,
        dtype=dtype,
        device=device,
        max_num_seqs=cast(SchedulerConfig, config.scheduler.config).max_num_seqs,
        max_num_batched_tokens=num_tokens,
        max_model_len=max_model_len,
        deterministic=config.engine.deterministic,
    )
