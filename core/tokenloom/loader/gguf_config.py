"""From the metadata of a GGUF file to a ModelConfig: says it in config.json's words, which the family then reads."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tokenloom.checkpoint.end_tokens import end_tokens_by_text
from tokenloom.checkpoint.fields import MAX_LAYERS, Fields
from tokenloom.errors import ModelError, did_you_mean
from tokenloom.loader.gguf_parts import GGUFParts
from tokenloom.loader.gguf_rope import has_rope_divisors, rope_divisors, rope_parameters
from tokenloom.model_config import DivisorScaling, ModelConfig, RopeConfig
from tokenloom.models.architecture import Architecture
from tokenloom.models.gguf_layout import GGUFFacts, GGUFLayout
from tokenloom.models.registry import architecture_named, find_gguf_architecture

__all__ = ["find_layout", "gguf_config"]

_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
_NATIVE_DTYPES = {"F32": "float32", "F64": "float32", "F16": "float16"}
_END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_END_OF_TURN_KEY = "tokenizer.ggml.eot_token_id"

_log = logging.getLogger(__name__)

_COMMON_KEYS = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "tensor_data_layout",
        "vocab_size",
    }
)
"""What files of any family may say, without the prefix."""

_NEUTRAL_VALUES: Mapping[str, object] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.sliding_window": 0,
    "attn_logit_softcapping": 0.0,
    "embedding_scale": 1.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 1.0,
    "nextn_predict_layers": 0,
    "residual_scale": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "use_parallel_residual": False,
}
"""Keys that change nothing where they have this value, in families that know nothing of them."""


def find_layout(file: GGUFParts) -> GGUFLayout:
    """How the family of a file stores its tensors. Raises ModelError for one that is not supported."""
    name = Fields(file.metadata, file.path).text("general.architecture")
    if "moe" in name:
        raise ModelError(f"{file.path} holds a {name!r} model, a mixture of experts, which is not supported")
    layout = find_gguf_architecture(name, str(file.path)).gguf_layout()
    if layout is None:
        raise ModelError(f"{file.path} holds a {name!r} model, of which only Hugging Face folders are supported")
    return layout


def gguf_config(file: GGUFParts, layout: GGUFLayout, hf_names: Collection[str]) -> ModelConfig:
    """Reads the config.

    Args:
        file: the model.
        layout: of its family.
        hf_names: its tensors under Hugging Face's names.

    Raises:
        ModelError: naming the file and the key that is missing, wrong or not supported.
    """
    fields = Fields(file.metadata, file.path)
    name = fields.text("general.architecture")
    facts = GGUFFacts(fields, name, file.tensors)
    _check_keys(facts, layout)
    values = _common_values(facts, file, layout)
    values.update(layout.config_values(facts, values))
    config = _reader(facts, layout, name).read_config(Fields(values, file.path), hf_names)
    config = replace(
        config,
        ropes=_with_divisors(config.ropes, file),
        # Families have one word for the bias of all four projections; files need not have all.
        output_bias=facts.has_tensor("blk.0.attn_output.bias"),
        bos_token_id=next(iter(fields.token_ids("tokenizer.ggml.bos_token_id")), None),
        eos_token_ids=_end_token_ids(fields),
        dtype=_native_dtype(file),
    )
    return config.validated(str(file.path))


def _reader(facts: GGUFFacts, layout: GGUFLayout, name: str) -> Architecture:
    if layout.windowed_family is not None and facts.integer("attention.sliding_window", 0, minimum=0) > 0:
        return architecture_named(layout.windowed_family)
    return find_gguf_architecture(name, str(facts.path))


def _check_keys(facts: GGUFFacts, layout: GGUFLayout) -> None:
    if facts.integer("expert_count", 0, minimum=0) > 0:
        raise ModelError(
            f"{facts.path} is a mixture of experts ({facts.key('expert_count')!r}), which is not supported"
        )
    known = _COMMON_KEYS | set(layout.keys)
    for key in facts.all_keys():
        if key in known or (key in _NEUTRAL_VALUES and facts.value(key) == _NEUTRAL_VALUES[key]):
            continue
        raise ModelError(
            f"{facts.path} sets {facts.key(key)!r} to {str(facts.value(key))[:80]}, which is not supported: it may "
            f"change what the model computes.{did_you_mean(key, known)}"
        )


def _common_values(facts: GGUFFacts, file: GGUFParts, layout: GGUFLayout) -> dict[str, Any]:
    """Entries of config.json that every family has."""
    hidden_size = facts.integer("embedding_length")
    num_heads = facts.uniform_integer("attention.head_count")
    head_dim = _head_dim(facts, hidden_size, num_heads)
    return {
        "hidden_size": hidden_size,
        "intermediate_size": facts.uniform_integer("feed_forward_length"),
        "num_hidden_layers": facts.integer("block_count", maximum=MAX_LAYERS),
        "num_attention_heads": num_heads,
        "num_key_value_heads": facts.uniform_integer("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "vocab_size": facts.integer("vocab_size", _num_embeddings(file)),
        "max_position_embeddings": facts.integer("context_length"),
        "rms_norm_eps": facts.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not facts.has_tensor(_HEAD),
        "rope_parameters": rope_parameters(facts, file, head_dim, whole_heads=not layout.rotates_in_part),
    }


def _head_dim(facts: GGUFFacts, hidden_size: int, num_heads: int) -> int:
    name = "attention.key_length"
    if facts.value(name) is None and hidden_size % num_heads != 0:
        raise ModelError(
            f"{facts.path}: {facts.key('embedding_length')!r} {hidden_size} is not a multiple of "
            f"{facts.key('attention.head_count')!r} {num_heads}, and {facts.key(name)!r} is absent"
        )
    head_dim = facts.integer(name, max(1, hidden_size // num_heads))
    value_length = facts.integer("attention.value_length", head_dim)
    if value_length != head_dim:
        raise ModelError(
            f"{facts.path}: keys and values of different size ({head_dim} and {value_length}) are not supported"
        )
    return head_dim


def _num_embeddings(file: GGUFParts) -> int:
    """Rows of the embedding: some files leave out rows that no token has."""
    info = file.tensors.get(_EMBEDDINGS)
    if info is None or len(info.shape) != 2:
        raise ModelError(f"{file.path} has no matrix {_EMBEDDINGS!r}.{did_you_mean(_EMBEDDINGS, file.tensors)}")
    return info.shape[0]


def _with_divisors(ropes: tuple[RopeConfig | None, ...], file: GGUFParts) -> tuple[RopeConfig | None, ...]:
    """The ropes with the file's divisors, if it has any, in place of their scaling."""
    kinds = {rope for rope in ropes if rope is not None}
    if len(kinds) != 1:
        if has_rope_divisors(file):
            raise ModelError(f"{file.path} has rope divisors, but its layers have {len(kinds)} kinds of rope, not one")
        return ropes
    divisors = rope_divisors(file, kinds.pop().rotary_dim)
    if divisors is None:
        return ropes
    return tuple(None if rope is None else replace(rope, scaling=DivisorScaling(divisors)) for rope in ropes)


def _end_token_ids(fields: Fields) -> tuple[int, ...]:
    """What the keys say; where none of them names the end of a turn, the tokens that are known to be one."""
    ids = [token_id for key in _END_TOKEN_KEYS for token_id in fields.token_ids(f"tokenizer.ggml.{key}")]
    if not fields.has(_END_OF_TURN_KEY):
        tokens = fields.texts("tokenizer.ggml.tokens")
        types = fields.raw("tokenizer.ggml.token_type")  # the tokenizer refuses wrong ones
        found = end_tokens_by_text(tokens, types if isinstance(types, list) else [])
        more = [token_id for token_id in found if token_id not in ids]
        if more:
            names = ", ".join(repr(tokens[token_id]) for token_id in more)
            _tell_end_tokens(str(fields.path), names)
        ids += more
    return tuple(dict.fromkeys(ids))


@cache
def _tell_end_tokens(path: str, names: str) -> None:
    """Once in a process: a file is read for its tokenizer, and again for its weights."""
    _log.info("%s has no key %r; by their text, %s end a reply as well", path, _END_OF_TURN_KEY, names)


def _native_dtype(file: GGUFParts) -> str:
    """The float type of most weight bytes; quantized weights have none, and bfloat16 is what they were made from."""
    bytes_by_type: dict[str, int] = {}
    for info in file.tensors.values():
        bytes_by_type[info.block_type.name] = bytes_by_type.get(info.block_type.name, 0) + info.num_bytes
    largest = max(bytes_by_type, key=lambda name: bytes_by_type[name], default="BF16")
    return _NATIVE_DTYPES.get(largest, "bfloat16")
