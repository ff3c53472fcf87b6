"""The network of a dense multi-token-prediction module, as DeepSeek and Qwen store one beside a model.

    h = fc([norm(embedding of the next token), norm(the target's final state)])      or the state given before
    state = a whole decoder layer over h                                             logits by head(norm(state))

    DeepSeek    model.layers.{L}.enorm, hnorm, eh_proj, the layer, shared_head.norm and shared_head.head
                L is the number of the target's layers; the embedding of position 0 counts as zero
    Qwen        mtp.pre_fc_norm_embedding, mtp.pre_fc_norm_hidden, mtp.fc, mtp.layers.0.*, mtp.norm
                the normed state is fed back, and the target's head gives the logits

Source: DeepSeek-AI, "DeepSeek-V3 technical report" (2024), section 2.2.
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
from tokenloom_spec_decode.eagle_layer import HeadAttention, HeadTensors, head_factory, kv_group_of

__all__ = ["MtpHead", "load_mtp"]

_FINAL_STATE = -1
_LAYER = "layer"
_QWEN = (
    (re.compile(r"mtp\.pre_fc_norm_embedding\."), "embedding_norm."),
    (re.compile(r"mtp\.pre_fc_norm_hidden\."), "hidden_norm."),
    (re.compile(r"mtp\.fc\."), "fc."),
    (re.compile(r"mtp\.layers\.0\."), f"{_LAYER}."),
    (re.compile(r"mtp\.norm\."), "norm."),
)
_DEEPSEEK = (("enorm.", "embedding_norm."), ("hnorm.", "hidden_norm."), ("eh_proj.", "fc."))
_SHARED_HEAD = (("shared_head.norm.", "norm."), ("shared_head.head.", "head."))
_LEFT_OUT = ("embed_tokens.weight", "rotary_emb.inv_freq")


@final
class MtpHead(EagleHead):
    """Made by `load_mtp`."""

    def __init__(
        self,
        layer: ModelConfig,
        tensors: HeadTensors,
        context: DrafterContext,
        quantizer: Quantizer,
        *,
        is_deepseek: bool,
    ) -> None:
        """`layer`: sizes; `quantizer` stores the weights; `is_deepseek`: which of the two."""
        factory, size, eps = head_factory(context, quantizer), layer.hidden_size, layer.rms_norm_eps
        self._is_deepseek = is_deepseek
        self._embedding_norm = factory.norm("embedding_norm", size, eps)
        self._hidden_norm = factory.norm("hidden_norm", size, eps)
        self._fc = factory.linear("fc", 2 * size, {"fc": size})
        self._attention_norm = factory.norm(f"{_LAYER}.input_layernorm", size, eps)
        self._attention = HeadAttention(layer, factory, f"{_LAYER}.self_attn", size)
        self._ffn_norm = factory.norm(f"{_LAYER}.post_attention_layernorm", size, eps)
        self._ffn = GatedFeedForward(layer, factory, f"{_LAYER}.mlp")
        self._norm = factory.norm("norm", size, eps)
        own_head = "head.weight" in tensors
        self._head = factory.linear("head", size, {"head": layer.vocab_size}) if own_head else None
        self._embed, self._target_logits = context.embed, context.compute_logits
        needs = DrafterNeeds((_FINAL_STATE,), (kv_group_of(layer),), f"mtp {tensors.digest} {quantizer.fingerprint}")
        super().__init__(HeadFacts(needs, tensors.load(factory)))

    def fuse(self, hidden_states: Mapping[int, torch.Tensor]) -> torch.Tensor:
        return hidden_states[_FINAL_STATE]

    def run(self, next_ids: torch.Tensor, states: torch.Tensor, draft_pass: DraftPass) -> torch.Tensor:
        normed, residual = self._entered(next_ids, states, draft_pass)
        normed, residual = self._ffn_norm.enter(self._attention(normed, draft_pass), residual)
        state = residual + self._ffn(normed)
        return state if self._is_deepseek else self._norm(state)

    def store(self, next_ids: torch.Tensor, states: torch.Tensor, draft_pass: DraftPass) -> None:
        self._attention.store(self._entered(next_ids, states, draft_pass)[0], draft_pass)

    def _entered(
        self, next_ids: torch.Tensor, states: torch.Tensor, draft_pass: DraftPass
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the layer's attention part takes, and the residual beside it, both [T, H]."""
        embedded = self._embed(next_ids)  # [T, H]
        if self._is_deepseek:
            embedded = embedded.masked_fill((draft_pass.positions == 0)[:, None], 0.0)
        joined = torch.cat([self._embedding_norm(embedded), self._hidden_norm(states)], dim=-1)  # [T, 2 * H]
        return self._attention_norm.enter(None, self._fc.apply(joined))

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        normed = self._norm(states) if self._is_deepseek else states
        return self._target_logits(normed) if self._head is None else self._head.apply_float32(normed)


def load_mtp(folder: Path, context: DrafterContext, quantizer: Quantizer) -> MtpHead:
    """Loads the module of a folder, which may hold the whole model or the module alone; `quantizer` stores its weights.

    Raises:
        ModelError: the folder holds none, more than one, or one for another target.
    """
    files = open_weights(folder)
    try:
        path = folder / "config.json"
        whole = Fields(read_json(path), path)
        fields = whole.group("text_config") or whole
        prefix = f"model.layers.{context.num_layers}."
        is_deepseek = any(name.startswith(prefix) for name in files)
        _refuse_more(folder, context.num_layers + 1, tuple(files))
        names = _deepseek_names(prefix, tuple(files)) if is_deepseek else _qwen_names(tuple(files))
        if not names:
            raise ModelError(
                f"{folder} holds no multi-token-prediction module: neither {prefix}eh_proj.weight, behind the target's "
                f"{context.num_layers} layers, nor mtp.fc.weight"
            )
        architecture = find_hf_architecture(fields.text("model_type", "llama"), (), str(path))
        layer = replace(architecture.read_config(fields, tuple(names)), dtype="float32").validated(str(path))
        wanted, found = (context.hidden_size, context.vocab_size), (layer.hidden_size, layer.vocab_size)
        if found != wanted:
            raise ModelError(
                f"{folder} is a module for targets of hidden size {found[0]} and {found[1]} tokens; this one has "
                f"{wanted[0]} and {wanted[1]}"
            )
        return MtpHead(layer, HeadTensors(folder, files, names), context, quantizer, is_deepseek=is_deepseek)
    finally:
        for file in set(files.values()):
            file.close()


def _refuse_more(folder: Path, number: int, stored: tuple[str, ...]) -> None:
    second = (f"model.layers.{number}.eh_proj.", "mtp.layers.1.")
    if any(name.startswith(second) for name in stored):
        raise ModelError(f"{folder} holds more than one multi-token-prediction module; spec_decode=mtp runs one")


def _deepseek_names(prefix: str, stored: tuple[str, ...]) -> dict[str, str]:
    """{name in the layers: name in the file}. What the module shares with the target is left out."""
    names: dict[str, str] = {}
    for name in stored:
        own = name.removeprefix(prefix)
        if own == name or own in _LEFT_OUT or own.endswith(_LEFT_OUT[1]):
            continue
        for old, new in (*_DEEPSEEK, *_SHARED_HEAD):
            if own.startswith(old):
                names[own.replace(old, new, 1)] = name
                break
        else:
            names[f"{_LAYER}.{own}"] = name
    return names


def _qwen_names(stored: tuple[str, ...]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in stored:
        for pattern, new in _QWEN:
            if pattern.match(name):
                names[pattern.sub(new, name, count=1)] = name
    return names
