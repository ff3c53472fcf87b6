"""A head that was trained before, to go on from: its weights and the tokens that it can draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tokenloom.drafter_training.head_files import TARGET_KEY
from tokenloom.drafter_training.trainable_head import TrainableHead
from tokenloom.errors import ConfigError
from tokenloom.json_file import read_json

__all__ = ["HeadStart", "read_head_start"]

_OFFSETS, _MASK, _TOKEN_MAP = "d2t", "t2d", "token_map"


@final
@dataclass(frozen=True, slots=True)
class HeadStart:
    """What `read_head_start` found.

    Attributes:
        folder: of the head.
        draft_ids: int64 [D], rising ids of the target that it can draft.
        tensors: its weights by their names in the network.
    """

    folder: Path
    draft_ids: torch.Tensor
    tensors: Mapping[str, torch.Tensor]

    def apply(self, head: TrainableHead) -> None:
        """Takes the weights over. Raises ConfigError where `head` has others."""
        try:
            head.load_state_dict({name: tensor.float() for name, tensor in self.tensors.items()})
        except RuntimeError as error:
            raise ConfigError(
                f"init={self.folder} holds a head of another form: {error}; choose one that was trained for this model "
                "with as many drafts, or leave init= out"
            ) from error


def read_head_start(folder: Path, kind: str, fingerprint: str) -> HeadStart:
    """Reads a head that train-drafter wrote.

    Args:
        folder: that it was written to.
        kind: of the drafter, as in `HeadRecord`.
        fingerprint: of the target that the new head is for.

    Raises:
        ConfigError: there is none, or one of another kind or for another model.
        ModelError: its config.json cannot be read.
    """
    target = read_json(folder / "config.json").get(TARGET_KEY, {})
    if (target.get("drafter"), target.get("fingerprint")) != (kind, fingerprint):
        raise ConfigError(
            f"init={folder} is a head of kind {target.get('drafter')!r} for {target.get('name')!r}; it must be of kind "
            f"{kind!r} and trained for this very model: choose another folder, or leave init= out"
        )
    try:
        tensors = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"init={folder}: cannot read model.safetensors: {error}") from error
    if _TOKEN_MAP in tensors:
        ids = tensors.pop(_TOKEN_MAP)
    elif _OFFSETS in tensors:
        offsets = tensors.pop(_OFFSETS)
        ids = offsets + torch.arange(len(offsets))
        tensors.pop(_MASK, None)
    else:
        raise ConfigError(f"init={folder} does not say which tokens it drafts: no {_OFFSETS!r} and no {_TOKEN_MAP!r}")
    return HeadStart(folder, ids, tensors)
