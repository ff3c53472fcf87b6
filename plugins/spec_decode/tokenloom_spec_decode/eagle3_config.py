"""Reads config.json of an EAGLE-3 head, as SafeAILab (and SpecForge) write it or as `speculators` does.

SafeAILab     a small Llama config with draft_vocab_size at the top
speculators   speculators_model_type "eagle3", the layer's own config under transformer_layer_config
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.json_file import read_json
from tokenloom.model_config import ModelConfig
from tokenloom.models.registry import find_hf_architecture

__all__ = ["Eagle3Config", "default_aux_layers", "read_eagle3_config"]

_AUX_KEY = "eagle_aux_hidden_state_layer_ids"
_UNKNOWN_NORMS = ("norm_before_fc", "fc_norm")
_NUM_AUX = 3


@final
@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """Sizes and variants of a head.

    Attributes:
        layer: of its one decoder layer; layer.vocab_size is the target's V.
        draft_vocab_size: columns of its logits.
        target_hidden_size: H of the target.
        aux_layers: decoder layers of the target whose outputs it reads, in the order in which they are joined.
        norm_before_residual: the residual stream begins with the normed state.
        norm_output: the normed state is fed back.
    """

    layer: ModelConfig
    draft_vocab_size: int
    target_hidden_size: int
    aux_layers: tuple[int, ...]
    norm_before_residual: bool
    norm_output: bool


def default_aux_layers(num_layers: int) -> tuple[int, ...]:
    """The layers whose outputs enter layers 2, n // 2 and n - 3 of a target with n layers."""
    return (1, num_layers // 2 - 1, num_layers - 4)


def read_eagle3_config(folder: Path, tensor_names: Collection[str], num_target_layers: int) -> Eagle3Config:
    """Reads the file.

    Args:
        folder: of the head.
        tensor_names: of its files.
        num_target_layers: decoder layers of the target.

    Raises:
        ModelError: it is no such file, or asks for what the head's code does not know.
    """
    path = folder / "config.json"
    whole = Fields(read_json(path), path)
    kind = whole.text("speculators_model_type", "eagle3")
    part = whole.group("transformer_layer_config") if whole.has("speculators_model_type") else whole
    if kind != "eagle3" or part is None:
        raise ModelError(f"{path} describes a {kind!r} head without a transformer_layer_config, or no EAGLE-3 head")
    if part.integer("num_hidden_layers", 1) != 1:
        raise ModelError(f"{path}: EAGLE-3 heads have 1 layer, 'num_hidden_layers' is {part.raw('num_hidden_layers')}")
    for key in _UNKNOWN_NORMS:
        if whole.flag(key, False):
            raise ModelError(f"{path} sets {key!r}, a norm of newer heads that spec_decode=eagle3 does not have")
    eagle_part = whole.group("eagle_config") or Fields({}, path)
    if not eagle_part.flag("use_aux_hidden_state", True):
        raise ModelError(f"{path} sets 'use_aux_hidden_state' to false: such a head reads no states of inner layers")
    architecture = find_hf_architecture(part.text("model_type", "llama"), (), str(path))
    layer = replace(architecture.read_config(part, tensor_names), dtype="float32").validated(str(path))
    return Eagle3Config(
        layer=layer,
        draft_vocab_size=whole.integer("draft_vocab_size", layer.vocab_size),
        target_hidden_size=whole.integer("target_hidden_size", layer.hidden_size),
        aux_layers=_aux_layers(whole if whole.has(_AUX_KEY) else eagle_part, num_target_layers),
        norm_before_residual=whole.flag("norm_before_residual", False),
        norm_output=whole.flag("norm_output", False),
    )


def _aux_layers(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Files count the layers that the states enter, from 0; the target's layers are counted by what leaves them."""
    stated = fields.raw(_AUX_KEY)
    if stated is None:
        layers = default_aux_layers(num_layers)
    elif isinstance(stated, list) and all(type(number) is int for number in stated):
        layers = tuple(number - 1 for number in stated[:_NUM_AUX])
    else:
        raise ModelError(f"{fields.path}: {_AUX_KEY!r} must be a list of layer numbers, got {stated!r:.80}")
    if len(layers) != _NUM_AUX or not all(0 <= layer < num_layers for layer in layers):
        raise ModelError(
            f"{fields.path}: an EAGLE-3 head reads {_NUM_AUX} states between layers 1 and {num_layers} of this target, "
            f"{_AUX_KEY!r} gives {[layer + 1 for layer in layers]}"
        )
    return layers
