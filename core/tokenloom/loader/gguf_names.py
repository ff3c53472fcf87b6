"""Which tensor of a GGUF file is which of a Hugging Face folder."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tokenloom.checkpoint.fields import MAX_LAYERS, Fields
from tokenloom.errors import ModelError, did_you_mean
from tokenloom.loader.gguf_parts import GGUFParts
from tokenloom.loader.gguf_rope import ROPE_TENSORS
from tokenloom.models.gguf_layout import GGUFLayout

__all__ = ["hf_names"]

_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.")
_HINTS = (
    ("exps", "it is a mixture of experts, which is not supported"),
    ("ffn_gate_inp", "it is a mixture of experts, which is not supported"),
    ("v.", "it has a vision part, which is not supported; use a file that holds the language model alone"),
    ("mm.", "it has a vision part, which is not supported; use a file that holds the language model alone"),
    ("cls", "it is a classifier or an embedding model, which does not generate text"),
)
"""(part of a name, or its beginning if it ends in a dot; what a file with such tensors is)"""


def hf_names(file: GGUFParts, layout: GGUFLayout) -> dict[str, str]:
    """{Hugging Face name: GGUF name} of all weights, in file order.

    Raises:
        ModelError: the file holds a tensor that the model would not use.
    """
    architecture = Fields(file.metadata, file.path).text("general.architecture")
    num_layers = Fields(file.metadata, file.path).integer(f"{architecture}.block_count", maximum=MAX_LAYERS)
    names = {**_MODEL_NAMES, **_names_of_layers(layout.layer_names, num_layers)}
    unknown = [name for name in file.tensors if name not in names and name not in ROPE_TENSORS]
    if unknown:
        raise ModelError(
            f"{file.path} holds {len(unknown)} tensors that a {architecture} model of {num_layers} layers does not "
            f"use, among them {', '.join(repr(name) for name in unknown[:3])}: {_hint(unknown, names, num_layers)}"
        )
    return {names[name]: name for name in file.tensors if name in names}


def _names_of_layers(layer_names: Mapping[str, str], num_layers: int) -> dict[str, str]:
    return {
        f"blk.{layer}.{gguf_part}.{suffix}": f"model.layers.{layer}.{hf_part}.{suffix}"
        for layer in range(num_layers)
        for gguf_part, hf_part in layer_names.items()
        for suffix in ("weight", "bias")
    }


def _hint(unknown: list[str], names: Mapping[str, str], num_layers: int) -> str:
    for mark, hint in _HINTS:
        if any(name.startswith(mark) if mark.endswith(".") else mark in name for name in unknown):
            return hint
    layers = [int(match[1]) for name in unknown if (match := _LAYER_TENSOR.match(name))]
    if layers and min(layers) >= num_layers:
        return f"its tensors are those of {max(layers) + 1} layers; its block_count may be damaged"
    return f"it may be another kind of model.{did_you_mean(unknown[0], names)}"
