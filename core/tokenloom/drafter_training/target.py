"""The parts of a target that training reads beside its states: embedding, output matrix, a layer to begin with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.errors import ModelError
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.target_fingerprint import target_fingerprint
from tokenloom.model_config import ModelConfig
from tokenloom.models.registry import model_infos

__all__ = ["Target", "aux_layers", "read_target"]

_EMBEDDING, _HEAD, _NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
_LAYER_PARTS = (
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


@final
@dataclass(frozen=True, slots=True)
class Target:
    """A frozen model, in float32: V tokens, hidden size H.

    Attributes:
        name: of its file or folder.
        class_names: `architectures` of its family in config.json.
        config: of the model.
        fingerprint: names its weights, see `target_fingerprint`.
        embedding: [V, H], as it enters the first layer.
        head: [V, H], makes logits of final states.
        last_layer: the weights of its last decoder layer by their names in that layer; empty where a family's layer is
            no Llama layer.
        final_norm: [H].
    """

    name: str
    class_names: tuple[str, ...]
    config: ModelConfig
    fingerprint: str
    embedding: torch.Tensor
    head: torch.Tensor
    last_layer: Mapping[str, torch.Tensor]
    final_norm: torch.Tensor


def aux_layers(num_layers: int) -> tuple[int, int, int]:
    """The layers whose outputs an EAGLE-3 head reads: a low, a middle and a high one.

    Raises:
        ModelError: the target has too few layers.
    """
    if num_layers < 5:
        raise ModelError(f"an EAGLE-3 head reads three inner layers of its target; this one has {num_layers} layers")
    return 1, num_layers // 2 - 1, num_layers - 4


def read_target(path: Path, device: torch.device) -> Target:
    """Reads a checkpoint onto a device.

    Raises:
        ModelError: it cannot be read, or its weights are quantized in a way that training cannot read.
    """
    checkpoint = open_checkpoint(path)
    try:
        if checkpoint.quantization is not None:
            raise ModelError(
                f"{path} holds packed weights; train-drafter reads plain ones or GGUF: train on the checkpoint that it "
                "was made from"
            )
        return _read(checkpoint, device)
    finally:
        checkpoint.close()


def _read(checkpoint: Checkpoint, device: torch.device) -> Target:
    config, offset = checkpoint.config, checkpoint.config.norm_offset

    def load(name: str) -> torch.Tensor:
        return checkpoint.load(name, torch.float32).to(device)

    embedding = load(_EMBEDDING)
    prefix = f"model.layers.{config.num_layers - 1}."
    names = {part: f"{prefix}{part}.weight" for part in _LAYER_PARTS}
    has_all = set(names.values()) <= set(checkpoint.tensor_names()) and not config.has_post_norms
    layer = {part: load(name) for part, name in names.items()} if has_all else {}
    return Target(
        name=checkpoint.path.name,
        class_names=next(info.class_names[:1] for info in model_infos() if info.name == config.architecture),
        config=config,
        fingerprint=target_fingerprint(checkpoint.path),
        embedding=embedding * config.embedding_scale,
        head=embedding if config.tie_word_embeddings else load(_HEAD),
        last_layer={part: tensor + offset if "norm" in part else tensor for part, tensor in layer.items()},
        final_norm=load(_NORM) + offset,
    )
