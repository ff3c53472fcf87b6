"""Tiny random checkpoints of every family, made and written by Transformers itself, and Transformers' own logits.

Transformers is imported inside the functions: that takes seconds, and only tests that compare with it should wait.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

__all__ = ["FAMILIES", "VOCAB_SIZE", "Family", "open_oracle", "oracle_greedy", "oracle_logits", "write_family"]

VOCAB_SIZE = 96

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@dataclass(frozen=True, slots=True)
class Family:
    """How Transformers calls a family, and what its tiny model has beside the common sizes."""

    config_class: str
    model_class: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    has_scaled_embedding: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaConfig", "LlamaForCausalLM"),
    "mistral": Family("MistralConfig", "MistralForCausalLM", {"sliding_window": 7}),
    "qwen2": Family("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 20}),
    "gemma2": Family(
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {"head_dim": 20, "sliding_window": 7, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0},
        has_scaled_embedding=True,
    ),
    "gemma3": Family(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {"head_dim": 20, "num_hidden_layers": 7, "sliding_window": 7, "query_pre_attn_scalar": 24},
        has_scaled_embedding=True,
    ),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM"),
    "smollm3": Family("SmolLM3Config", "SmolLM3ForCausalLM", {"num_hidden_layers": 4}),
}


def write_family(
    folder: Path,
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "50GB",
) -> Path:
    """Writes a tiny random model of a family by `save_pretrained`, and returns `folder`.

    Args:
        settings: arguments of the family's config class, over those of `FAMILIES`.
        max_shard_size: e.g. "20KB" to have several files and an index.
    """
    import transformers

    family = FAMILIES[name]
    config = getattr(transformers, family.config_class)(**{**_SIZES, **family.settings, **(settings or {})})
    config.dtype = dtype
    model = getattr(transformers, family.model_class)(config)
    _randomize(model, seed, family.has_scaled_embedding)
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def _randomize(model: Any, seed: int, has_scaled_embedding: bool) -> None:
    """Weights under which every part matters: streams of unit size, sharp attention, norms that are not all alike."""
    generator = torch.Generator().manual_seed(seed)
    is_tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    embedding_std = model.config.hidden_size**-0.5 if has_scaled_embedding else 0.25 if is_tied else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                centre = 0.0 if has_scaled_embedding else 1.0
                parameter.copy_(centre + 0.3 * values)
            elif parameter.ndim == 1:
                parameter.copy_(0.3 * values)
            elif "embed_tokens" in name:
                parameter.copy_(embedding_std * values)
            else:
                parameter.copy_(1.5 * values / parameter.shape[1] ** 0.5)


@functools.cache
def open_oracle(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Transformers' model of a folder; eager attention, the only one that knows soft caps."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


def oracle_logits(folder: Path, token_ids: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Transformers' logits of every position of one sequence: [T, V], fp32."""
    with torch.no_grad():
        logits: torch.Tensor = open_oracle(folder, dtype)(torch.tensor([list(token_ids)]), use_cache=False).logits
    return logits[0].float()


def oracle_greedy(folder: Path, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The greedy continuation, computed anew from all tokens at each step, without a cache."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(int(oracle_logits(folder, token_ids)[-1].argmax()))
    return token_ids[len(prompt) :]
