"""The network of an EAGLE-3 head.

    h = fc(states of three of the target's layers)          or the state that the head gave for the entry before
    x = h + attention([input_layernorm(embedding of the next token), hidden_norm(h)])
    state = x + mlp(post_attention_layernorm(x))            logits = lm_head(norm(state)), over a draft vocabulary

Source: Li et al., "EAGLE-3: Scaling up inference acceleration of large language models via training-time test" (2025).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import final

import torch

from tokenloom.errors import ModelError
from tokenloom.interfaces.draft_memory import DraftPass
from tokenloom.interfaces.quant import Quantizer
from tokenloom.interfaces.spec_decode import DrafterContext, DrafterNeeds
from tokenloom.loader.weight_layout import open_weights
from tokenloom.models.feed_forward import GatedFeedForward
from tokenloom_spec_decode.eagle3_config import Eagle3Config, read_eagle3_config
from tokenloom_spec_decode.eagle_drafter import EagleHead, HeadFacts
from tokenloom_spec_decode.eagle_layer import HeadAttention, HeadTensors, embedding_of, head_factory, kv_group_of

__all__ = ["Eagle3Head", "load_eagle3"]

_LAYER, _SPECULATORS_LAYER = "midlayer", re.compile(r"layers\.0\.")
_MAPS = ("d2t", "t2d")
_LEFT_OUT = re.compile(r".*rotary_emb\.inv_freq|verifier_.*")


@final
class Eagle3Head(EagleHead):
    """Made by `load_eagle3`."""

    def __init__(
        self,
        config: Eagle3Config,
        tensors: HeadTensors,
        column_ids: torch.Tensor | None,
        context: DrafterContext,
        quantizer: Quantizer,
    ) -> None:
        """`column_ids` as in `HeadFacts`; `tensors` hold the weights, `quantizer` stores them."""
        factory, layer = head_factory(context, quantizer), config.layer
        size, eps = layer.hidden_size, layer.rms_norm_eps
        self._config = config
        self._fc = factory.linear("fc", 3 * config.target_hidden_size, {"fc": size})
        self._embedding_norm = factory.norm(f"{_LAYER}.input_layernorm", size, eps)
        self._hidden_norm = factory.norm(f"{_LAYER}.hidden_norm", size, eps)
        self._attention = HeadAttention(layer, factory, f"{_LAYER}.self_attn", 2 * size)
        self._ffn_norm = factory.norm(f"{_LAYER}.post_attention_layernorm", size, eps)
        self._ffn = GatedFeedForward(layer, factory, f"{_LAYER}.mlp")
        self._norm = factory.norm("norm", size, eps)
        own_head = "lm_head.weight" in tensors
        # Not called lm_head: quantizers leave that one alone, for a model's words depend on it. These are drafts only.
        self._head = factory.linear("draft_head", size, {"lm_head": config.draft_vocab_size}) if own_head else None
        self._embed = embedding_of(tensors, factory, layer, context)
        self._target_logits = context.compute_logits
        digest = f"eagle3 {tensors.digest} {quantizer.fingerprint}"
        needs = DrafterNeeds(tuple(sorted(set(config.aux_layers))), (kv_group_of(layer),), digest)
        super().__init__(HeadFacts(needs, tensors.load(factory), column_ids))

    def fuse(self, hidden_states: Mapping[int, torch.Tensor]) -> torch.Tensor:
        return self._fc.apply(torch.cat([hidden_states[layer] for layer in self._config.aux_layers], dim=-1))

    def run(self, next_ids: torch.Tensor, states: torch.Tensor, draft_pass: DraftPass) -> torch.Tensor:
        joined, normed = self._joined(next_ids, states)
        residual = normed if self._config.norm_before_residual else states
        normed, residual = self._ffn_norm.enter(self._attention(joined, draft_pass), residual)
        state = residual + self._ffn(normed)
        return self._norm(state) if self._config.norm_output else state

    def store(self, next_ids: torch.Tensor, states: torch.Tensor, draft_pass: DraftPass) -> None:
        self._attention.store(self._joined(next_ids, states)[0], draft_pass)

    def _joined(self, next_ids: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the attention part takes, [T, 2 * H], and the normed states in it, [T, H]."""
        normed = self._hidden_norm(states)
        return torch.cat([self._embedding_norm(self._embed(next_ids)), normed], dim=-1), normed

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        normed = states if self._config.norm_output else self._norm(states)
        return self._target_logits(normed) if self._head is None else self._head.apply_float32(normed)


def load_eagle3(folder: Path, context: DrafterContext, quantizer: Quantizer) -> Eagle3Head:
    """Loads a head for a target; `quantizer` stores its weights.

    Raises:
        ModelError: the folder holds none, or one for another target.
    """
    files = open_weights(folder)
    try:
        names = {_SPECULATORS_LAYER.sub(f"{_LAYER}.", name, count=1): name for name in files}
        names = {name: stored for name, stored in names.items() if not _LEFT_OUT.fullmatch(name)}
        config = read_eagle3_config(folder, tuple(names), context.num_layers)
        _check_target(folder, config, names, context)
        maps = HeadTensors(folder, files, {name: names.pop(name) for name in _MAPS if name in names})
        column_ids = _column_ids(folder, maps, config, context)
        return Eagle3Head(config, HeadTensors(folder, files, names), column_ids, context, quantizer)
    finally:
        for file in set(files.values()):
            file.close()


def _check_target(folder: Path, config: Eagle3Config, names: Mapping[str, str], context: DrafterContext) -> None:
    layer = config.layer
    has_own = "embed_tokens.weight" in names
    if config.target_hidden_size != context.hidden_size or (not has_own and layer.hidden_size != context.hidden_size):
        raise ModelError(
            f"{folder} is a head for targets of hidden size {config.target_hidden_size}; this one's is "
            f"{context.hidden_size}"
        )
    if layer.vocab_size != context.vocab_size:
        raise ModelError(
            f"{folder} is a head for a vocabulary of {layer.vocab_size} tokens; this target's has {context.vocab_size}"
        )
    if "lm_head.weight" not in names and config.draft_vocab_size != context.vocab_size:
        raise ModelError(
            f"{folder} has no 'lm_head.weight'; the target's gives {context.vocab_size} logits, its config asks for "
            f"{config.draft_vocab_size}"
        )


def _column_ids(folder: Path, maps: HeadTensors, config: Eagle3Config, context: DrafterContext) -> torch.Tensor | None:
    """The target's id of each draft id: itself plus its offset in d2t. None where the vocabularies are the same."""
    num_columns, num_tokens = config.draft_vocab_size, context.vocab_size
    if "d2t" not in maps:
        if num_columns != num_tokens:
            raise ModelError(f"{folder} has no 'd2t' to say what its {num_columns} draft tokens mean")
        return None
    offsets = maps.view("d2t")
    if tuple(offsets.shape) != (num_columns,) or offsets.is_floating_point():
        raise ModelError(f"{folder}: 'd2t' must hold {num_columns} integers, got {offsets.dtype} {list(offsets.shape)}")
    ids = torch.arange(num_columns) + offsets.to(torch.int64)
    is_right = bool(((ids >= 0) & (ids < num_tokens)).all()) and len(set(ids.tolist())) == num_columns
    if not is_right:
        raise ModelError(f"{folder}: 'd2t' must lead to distinct token ids from 0 to {num_tokens - 1}")
    if "t2d" in maps:
        marked = maps.view("t2d").flatten().nonzero().flatten()
        if marked.tolist() != sorted(ids.tolist()):
            raise ModelError(f"{folder}: 't2d' and 'd2t' name different tokens of the target")
    return ids.to(context.device)
