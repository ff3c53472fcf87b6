"""A tiny target whose token ids are bytes, and a corpus of what it says."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny_model import write_tiny_llama
from tokenloom.compose import compose_config
from tokenloom.drafter_training.conversations import ConversationPlan
from tokenloom.drafter_training.corpus_maker import CorpusPlan, make_corpus
from tokenloom.drafter_training.draft_vocabulary import DraftVocabulary
from tokenloom.drafter_training.target import Target, aux_layers, read_target

__all__ = ["CPU", "ENGINE", "TALK", "corpus_plan", "make", "vocabulary_of", "write_target"]

CPU = torch.device("cpu")
ENGINE = (
    "cache=none",
    "cache.num_blocks=200",
    "scheduler.max_num_batched_tokens=128",
    "engine.num_threads=1",
    "model.dtype=float32",
)
"""Long conversations are computed in chunks."""
TALK = ConversationPlan(seed=3, answer_tokens=14, question_tokens=3, document_tokens=4)


def write_target(folder: Path) -> Path:
    """Six layers, hidden size 32, sizes of `TinyEagle3`."""
    return write_tiny_llama(
        folder,
        hidden_size=32,
        intermediate_size=48,
        num_layers=6,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=256,
        max_position=512,
        with_tokenizer=True,
    )


def corpus_plan(target: Target, count: int = 8, talk: ConversationPlan = TALK) -> CorpusPlan:
    """Shards of four conversations."""
    layers = (*aux_layers(target.config.num_layers), -1)
    return CorpusPlan(target.fingerprint, layers, count, talk, shard=4)


def make(model: Path, folder: Path, count: int = 8, talk: ConversationPlan = TALK) -> Target:
    """Makes a corpus of the model; returns the target."""
    target = read_target(model, CPU)
    make_corpus(compose_config([f"model={model}", *ENGINE]), folder, corpus_plan(target, count, talk), lambda *_: None)
    return target


def vocabulary_of(target: Target, size: int = 128) -> DraftVocabulary:
    """Every second token."""
    return DraftVocabulary(torch.arange(0, 2 * size, 2), target.config.vocab_size)
