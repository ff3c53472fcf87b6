"""The network of an EAGLE head, of the first two versions.

    h = fc([embedding of the next token, the target's final state])       or the state that the head gave before
    x = h + attention(h)                                                  not normed before
    state = x + mlp(post_attention_layernorm(x))                          logits by the target's own output matrix

Source: Li et al., "EAGLE: Speculative sampling requires rethinking feature uncertainty" (2024).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import final

import torch

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.interfaces.draft_memory import DraftPass
from tokenloom.interfaces.quant import Quantizer
from tokenloom.interfaces.spec_decode import DrafterContext, DrafterNeeds
from tokenloom.json_file import read_json
from tokenloom.loader.weight_layout import open_weights
from tokenloom.model_config import ModelConfig
from tokenloom.models.feed_forward import GatedFeedForward
from tokenloom.models.registry import find_hf_architecture
from tokenloom_spec_decode.eagle_drafter import EagleHead, HeadFacts
from tokenloom_spec_decode.eagle_layer import HeadAttention, HeadTensors, embedding_of, head_factory, kv_group_of

__all__ = ["Eagle1Head", "load_eagle"]

_FINAL_STATE = -1
_LAYER = "layers.0"
_LEFT_OUT = re.compile(r".*rotary_emb\.inv_freq|lm_head\.weight")


@final
class Eagle1Head(EagleHead):
    """Made by `load_eagle`."""

    def __init__(
        self, layer: ModelConfig, has_bias: bool, tensors: HeadTensors, context: DrafterContext, quantizer: Quantizer
    ) -> None:
        """`layer`: sizes; `has_bias`: of fc; `quantizer` stores the weights."""
        factory, size = head_factory(context, quantizer), layer.hidden_size
        self._fc = factory.linear("fc", 2 * size, {"fc": size}, has_bias=has_bias)
        self._attention = HeadAttention(layer, factory, f"{_LAYER}.self_attn", size)
        self._ffn_norm = factory.norm(f"{_LAYER}.post_attention_layernorm", size, layer.rms_norm_eps)
        self._ffn = GatedFeedForward(layer, factory, f"{_LAYER}.mlp")
        self._embed = embedding_of(tensors, factory, layer, context)
        self._target_logits = context.compute_logits
        needs = DrafterNeeds((_FINAL_STATE,), (kv_group_of(layer),), f"eagle {tensors.digest} {quantizer.fingerprint}")
        super().__init__(HeadFacts(needs, tensors.load(factory)))

    def fuse(self, hidden_states: Mapping[int, torch.Tensor]) -> torch.Tensor:
        return hidden_states[_FINAL_STATE]

    def run(self, next_ids: torch.Tensor, states: torch.Tensor, draft_pass: DraftPass) -> torch.Tensor:
        fused = self._fused(next_ids, states)
        normed, residual = self._ffn_norm.enter(self._attention(fused, draft_pass), fused)
        return residual + self._ffn(normed)

    def store(self, next_ids: torch.Tensor, states: torch.Tensor, draft_pass: DraftPass) -> None:
        self._attention.store(self._fused(next_ids, states), draft_pass)

    def _fused(self, next_ids: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        return self._fc.apply(torch.cat([self._embed(next_ids), states], dim=-1))  # [T, H]

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        return self._target_logits(states)


def load_eagle(folder: Path, context: DrafterContext, quantizer: Quantizer) -> Eagle1Head:
    """Loads a head for a target; `quantizer` stores its weights.

    Raises:
        ModelError: the folder holds none, or one for another target.
    """
    files = open_weights(folder)
    try:
        names = {name: name for name in files if not _LEFT_OUT.fullmatch(name)}
        path = folder / "config.json"
        fields = Fields(read_json(path), path)
        if fields.integer("num_hidden_layers", 1) != 1:
            raise ModelError(f"{path}: 'num_hidden_layers' is {fields.raw('num_hidden_layers')}; heads have 1 layer")
        architecture = find_hf_architecture(fields.text("model_type", "llama"), (), str(path))
        layer = replace(architecture.read_config(fields, tuple(names)), dtype="float32").validated(str(path))
        wanted, found = (context.hidden_size, context.vocab_size), (layer.hidden_size, layer.vocab_size)
        if found != wanted:
            raise ModelError(
                f"{folder} is a head for targets of hidden size {found[0]} and {found[1]} tokens; this one has "
                f"{wanted[0]} and {wanted[1]}"
            )
        has_bias = fields.flag("bias", "fc.bias" in names)
        return Eagle1Head(layer, has_bias, HeadTensors(folder, files, names), context, quantizer)
    finally:
        for file in set(files.values()):
            file.close()
