"""How far a model's distributions lie from a reference's, position by position, under the same tokens."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from tokenloom.errors import ConfigError
from tokenloom.models.causal_lm import CausalLM
from tokenloom.sampling.row_max import row_max

__all__ = ["Divergence", "ReferenceStates", "compare_states"]

_MAX_LOGITS = 1 << 22
"""Logits of each model that exist at once: 16 MiB in fp32, and a few times that for what is worked out from them."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Of n positions.

    Attributes:
        agrees: bool [n], whether both models' most likely tokens are the same; of equal ones the lowest id counts, as
            in greedy decoding.
        kl: fp64 [n], KL(reference || model) in nats.
    """

    agrees: Tensor
    kl: Tensor


@torch.inference_mode()
def compare_states(states: Tensor, model: CausalLM, reference_states: Tensor, reference: CausalLM) -> Divergence:
    """Compares two models' distributions over the next token.

    Args:
        states: [n, H], final states of the model.
        model: makes logits of them.
        reference_states: [n, H'], those of the reference at the same positions.
        reference: of the same vocabulary.

    Raises:
        ConfigError: the vocabularies differ, or a model's logits are not finite.
    """
    sizes = model.config.vocab_size, reference.config.vocab_size
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"the model has {sizes[0]} tokens, the reference {sizes[1]}; their distributions do not compare"
        )
    assert len(states) == len(reference_states), f"{len(states)} and {len(reference_states)} positions"
    num_rows = max(1, _MAX_LOGITS // sizes[0])
    blocks = [slice(first, first + num_rows) for first in range(0, len(states), num_rows)]
    pieces = [
        _compare(_logits(states[block], model, "model"), _logits(reference_states[block], reference, "reference"))
        for block in blocks
    ]
    return Divergence(torch.cat([piece.agrees for piece in pieces]), torch.cat([piece.kl for piece in pieces]))


def _logits(states: Tensor, model: CausalLM, name: str) -> Tensor:
    logits = model.compute_logits(states).to(torch.float32)  # [n, V]
    if not bool(logits.isfinite().all()):
        raise ConfigError(f"the {name}'s logits are not finite, so nothing can be compared; try model.dtype=float32")
    return logits


def _compare(logits: Tensor, expected: Tensor) -> Divergence:
    agrees = row_max(logits).indices.cpu() == row_max(expected).indices.cpu()  # [n]
    found, wanted = logits.log_softmax(dim=-1), expected.log_softmax(dim=-1)  # [n, V]
    kl = (wanted.exp() * (wanted - found.to(wanted.device))).sum(dim=-1, dtype=torch.float64)  # [n]
    return Divergence(agrees, kl.cpu())


@final
class ReferenceStates:
    """What a reference made of each window, in a temporary folder: memory holds one window, however many there are.

    Use it as a context; the folder is gone at its end.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tokenloom-eval-")
        self._model: CausalLM | None = None

    @property
    def model(self) -> CausalLM:
        """The reference, for its head."""
        assert self._model is not None, "keep() was never called"
        return self._model

    def keep(self, index: int, states: Tensor, model: CausalLM) -> None:
        """Stores the states [n, H] of a window."""
        self._model = model
        torch.save(states, self._file(index))

    def states(self, index: int) -> Tensor:
        """The states of a window, where they were computed."""
        found: Tensor = torch.load(self._file(index), weights_only=True)
        return found

    def close(self) -> None:
        """Removes the folder, and lets go of the model."""
        self._model = None
        self._folder.cleanup()

    def _file(self, index: int) -> Path:
        return Path(self._folder.name) / f"{index}.pt"

    def __enter__(self) -> ReferenceStates:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
