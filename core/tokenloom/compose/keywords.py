"""The one table from Python keywords, as in `LLM(max_num_seqs=8)`, to configuration keys."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["KEYWORDS"]

KEYWORDS: Mapping[str, str] = {
    "model": "model",
    "revision": "model.revision",
    "dtype": "model.dtype",
    "device": "model.device",
    "max_model_len": "model.max_model_len",
    "seed": "engine.seed",
    "deterministic": "engine.deterministic",
    "pipeline_depth": "engine.pipeline_depth",
    "num_threads": "engine.num_threads",
    "checks": "debug.checks",
    "attention": "attention",
    "scheduler": "scheduler",
    "max_num_seqs": "scheduler.max_num_seqs",
    "max_num_batched_tokens": "scheduler.max_num_batched_tokens",
    "cache": "cache",
    "block_size": "cache.block_size",
    "num_blocks": "cache.num_blocks",
    "memory_fraction": "cache.memory_fraction",
    "spec_decode": "spec_decode",
    "quant": "quant",
    "executor": "executor",
    "experiment": "experiment",
}
"""A key without a dot is a group: its value is the name of an option, and of `model` also a model source."""
