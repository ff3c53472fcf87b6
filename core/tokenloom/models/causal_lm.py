"""What every decoder model offers the model runner, and what one forward pass takes and gives.

T new tokens in the step, R rows that need logits, H hidden size, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.interfaces.attention import AttentionBackend, AttentionLayer, AttentionMetadata, KVScales
from tokenloom.interfaces.target_layers import LayerParts
from tokenloom.model_config import ModelConfig
from tokenloom.models.weight_loading import LoadProgress

__all__ = [
    "FINAL_STATE",
    "CausalLM",
    "ForwardContext",
    "KVSink",
    "ModelOutput",
    "PromptSink",
    "StateSink",
    "assign_groups",
]

PromptSink = Callable[[torch.Tensor], None]
"""Told final normed states [n, H] of prompt positions whose next token gets a logprob, in order; copy what is kept."""

StateSink = Callable[[Mapping[int, torch.Tensor]], None]
"""Told what each forward pass captured, see `ModelOutput.captured`; copy what is kept."""

KVSink = Callable[[AttentionLayer, torch.Tensor, torch.Tensor], None]
"""Told a layer's facts and the new tokens' keys and values, [T, Hkv, D] each; copy what is kept."""

FINAL_STATE = -1
"""In `ForwardContext.capture_layers`: the final normed state, beside the numbers of decoder layers."""


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What one forward pass needs beside the token ids.

    Attributes:
        positions: int64 [T], device; rotary position of each token.
        attention: writes K and V and attends.
        metadata: this step's, one per KV group, indexed by group_id.
        kv: cache tensors of each layer, in the order of `CausalLM.attention_layers()`; mutated.
        capture_layers: decoder layers whose output is wanted; `FINAL_STATE` is the final normed state.
        parts: only these parts of the layers run, and nothing is captured; None runs all.
        kv_scales: fixed scales of keys and values, by `AttentionLayer.layer_index`; layers without are written plainly.
        kv_sink: told what each layer is about to store; for calibration.
    """

    positions: torch.Tensor
    attention: AttentionBackend
    metadata: tuple[AttentionMetadata, ...]
    kv: Sequence[Sequence[torch.Tensor]]
    capture_layers: tuple[int, ...] = ()
    parts: LayerParts | None = None
    kv_scales: Mapping[int, KVScales] = field(default_factory=dict)
    kv_sink: KVSink | None = None


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """The result of one forward pass.

    Attributes:
        hidden: [T, H], final normed state; what `compute_logits` takes.
        captured: per entry of `capture_layers`, [T, H]: the residual stream after that decoder layer.
    """

    hidden: torch.Tensor
    captured: dict[int, torch.Tensor] = field(default_factory=dict)


class CausalLM(ABC):
    """A decoder-only model on one device. Holds weights and no state of requests."""

    @property
    @abstractmethod
    def config(self) -> ModelConfig:
        """The checkpoint's config, whatever range of layers is loaded."""

    @abstractmethod
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        """The facts of each loaded decoder layer, first to last; what KV memory is planned from."""

    @abstractmethod
    def load_weights(self, checkpoint: Checkpoint, progress: LoadProgress) -> None:
        """Fills all layers; called once, before anything else.

        Raises:
            ModelError: a tensor is missing, unknown or of the wrong shape.
        """

    @abstractmethod
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [n] -> [n, H]: the input embeddings."""

    @abstractmethod
    def forward(self, token_ids: torch.Tensor, context: ForwardContext) -> ModelOutput:
        """Runs the decoder over this step's new tokens: int64 [T], T may be 0. Writes their K and V."""

    @abstractmethod
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final normed states [R, H] -> logits [R, V], fp32, soft cap applied."""

    @property
    @abstractmethod
    def num_weight_bytes(self) -> int:
        """Bytes of all stored weights, a tied head counted once."""


def assign_groups(windows: Sequence[int | None]) -> tuple[int, ...]:
    """The KV group of each layer: equal windows share one; numbered from 0 in the order in which they first occur."""
    numbers: dict[int | None, int] = {}
    return tuple(numbers.setdefault(window, len(numbers)) for window in windows)
