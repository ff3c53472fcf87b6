"""Writes a trained head: model.safetensors in float16, config.json in the layout of its kind, and a card, README.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from tokenloom.drafter_training.acceptance import Acceptance
from tokenloom.drafter_training.corpus import write_tensors
from tokenloom.drafter_training.trainable_head import TrainableHead

__all__ = ["TARGET_KEY", "HeadRecord", "write_head"]

TARGET_KEY = "tokenloom_target"
"""In config.json: {"drafter": kind, "fingerprint": ..., "name": ...}, the model that a head was trained for."""


@final
@dataclass(frozen=True, slots=True)
class HeadRecord:
    """Where a head comes from.

    Attributes:
        kind: of the drafter.
        target_name: of the target's file or folder.
        fingerprint: of the target.
        command: that trained it, without places of one machine.
        facts: of data and training, (what, value).
    """

    kind: str
    target_name: str
    fingerprint: str
    command: str
    facts: Sequence[tuple[str, str]]


def write_head(folder: Path, head: TrainableHead, record: HeadRecord, acceptance: Acceptance) -> None:
    """Writes the three files.

    Args:
        folder: there already.
        head: trained.
        record: where it comes from.
        acceptance: what it reached.
    """
    tensors = head.tensors()
    write_tensors(
        folder / "model.safetensors",
        {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()},
    )
    config = {
        **head.config_json(acceptance.by_rank),
        "torch_dtype": str(torch.float16).removeprefix("torch."),
        TARGET_KEY: {"drafter": record.kind, "fingerprint": record.fingerprint, "name": record.target_name},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_card(record, acceptance), encoding="utf-8")
    # safetensors makes files that only their owner may read.
    shutil.copymode(folder / "config.json", folder / "model.safetensors")


def _card(record: HeadRecord, acceptance: Acceptance) -> str:
    facts = "\n".join(f"| {what} | {value} |" for what, value in record.facts)
    positions = "\n".join(
        f"| {number} | {rate:.1%} | {shares[0]:.1%} | {sum(shares[:3]):.1%} |"
        for number, (rate, shares) in enumerate(zip(acceptance.by_position, acceptance.by_rank, strict=True), 1)
    )
    return f"""# `{record.kind}` head for {record.target_name}

Trained with `{record.command}`.

## Data and training

The target wrote all of it: questions, from the first words of seeds that tokenloom brings, documents that some of the
questions are about, and answers to them in its chat template up to their end-of-sequence token. It learns the target's
own distribution at each token.

| what | value |
|---|---|
{facts}

## Acceptance

Greedy drafts at {acceptance.num_places} places in answers that it was not trained on. A chain of all drafts would give
{acceptance.tokens_per_step:.2f} tokens in each step, the target's own one included.

| draft | right if those before it are | right at all | among its best three |
|---|---|---|---|
{positions}
"""
