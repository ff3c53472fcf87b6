"""From the metadata of a GGUF file of architecture `llama` to a ModelConfig."""

from __future__ import annotations

import torch

from tokenloom.errors import ModelError
from tokenloom.loader.fields import MAX_LAYERS, Fields
from tokenloom.loader.gguf import GGUFFile
from tokenloom.loader.gguf_dequant import dequantize
from tokenloom.model_config import DivisorScaling, LinearScaling, ModelConfig, RopeConfig, RopeScaling

__all__ = ["ROPE_DIVISORS", "SUPPORTED_GGUF_ARCHITECTURES", "gguf_config"]

SUPPORTED_GGUF_ARCHITECTURES: tuple[str, ...] = ("llama",)
ROPE_DIVISORS = "rope_freqs.weight"

_NATIVE_DTYPES = {"F32": "float32", "F16": "float16"}
_END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_REFUSED_KEYS = (
    "llama.attention.clamp_kqv",
    "llama.attention.scale",
    "llama.attn_logit_softcapping",
    "llama.embedding_scale",
    "llama.final_logit_softcapping",
    "llama.logit_scale",
    "llama.residual_scale",
)
"""Keys that would change the model's arithmetic: ignoring one would give wrong text without a word."""


def gguf_config(file: GGUFFile) -> ModelConfig:
    """Reads the config. Raises ModelError naming the file and the key that is missing, wrong or not supported."""
    fields = Fields(file.metadata, file.path)
    _check_architecture(fields)
    num_layers = fields.integer("llama.block_count", maximum=MAX_LAYERS)
    num_heads = fields.uniform_integer("llama.attention.head_count")
    hidden_size = fields.integer("llama.embedding_length")
    head_dim = _head_dim(fields, hidden_size, num_heads)
    window = fields.integer("llama.attention.sliding_window", 0, minimum=0) or None
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return ModelConfig(
        architecture="llama",
        hidden_size=hidden_size,
        intermediate_size=fields.uniform_integer("llama.feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.uniform_integer("llama.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=fields.integer("llama.vocab_size", len(tokens) if isinstance(tokens, list) else None),
        max_position_embeddings=fields.integer("llama.context_length"),
        rms_norm_eps=fields.number("llama.attention.layer_norm_rms_epsilon"),
        rope=_rope(fields, file, head_dim),
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        hidden_act="silu",
        windows=(window,) * num_layers,
        attn_soft_cap=None,
        final_soft_cap=None,
        bos_token_id=next(iter(fields.token_ids("tokenizer.ggml.bos_token_id")), None),
        eos_token_ids=_end_token_ids(fields),
        dtype=_native_dtype(file),
    ).validated(str(file.path))


def _check_architecture(fields: Fields) -> None:
    architecture = fields.text("general.architecture")
    if architecture not in SUPPORTED_GGUF_ARCHITECTURES:
        raise ModelError(
            f"{fields.path} holds a model of architecture {architecture!r}; supported are "
            f"{', '.join(SUPPORTED_GGUF_ARCHITECTURES)}"
        )
    if fields.integer("llama.expert_count", 0, minimum=0) > 0:
        raise ModelError(f"{fields.path} is a mixture of experts ('llama.expert_count'), which is not supported")
    for key in _REFUSED_KEYS:
        if fields.has(key):
            raise ModelError(f"{fields.path} sets {key!r}, which is not supported for architecture {architecture!r}")
    if fields.integer("split.count", 1, minimum=0) > 1:
        raise ModelError(f"{fields.path} is one part of a split GGUF file; merge the parts into one file first")


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    if not fields.has("llama.attention.key_length") and hidden_size % num_heads != 0:
        raise ModelError(
            f"{fields.path}: 'llama.embedding_length' {hidden_size} is not a multiple of 'llama.attention.head_count' "
            f"{num_heads}, and 'llama.attention.key_length' is absent"
        )
    head_dim = fields.integer("llama.attention.key_length", max(1, hidden_size // num_heads))
    value_length = fields.integer("llama.attention.value_length", head_dim)
    if value_length != head_dim:
        raise ModelError(
            f"{fields.path}: keys and values of different size ({head_dim} and {value_length}) are not supported"
        )
    return head_dim


def _rope(fields: Fields, file: GGUFFile, head_dim: int) -> RopeConfig:
    rotary_dim = fields.integer("llama.rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        # The file interleaves the rows of whole heads; which rows a partial rotation would mean is not defined.
        raise ModelError(
            f"{file.path}: 'llama.rope.dimension_count' is {rotary_dim}, but only the full head size {head_dim} "
            "is supported"
        )
    return RopeConfig(
        fields.number("llama.rope.freq_base", 10000.0), rotary_dim, _rope_scaling(fields, file, rotary_dim)
    )


def _rope_scaling(fields: Fields, file: GGUFFile, rotary_dim: int) -> RopeScaling | None:
    info = file.tensors.get(ROPE_DIVISORS)
    if info is not None:  # the divisors already hold the effect of any scaling that the metadata names
        if info.shape != (rotary_dim // 2,):
            raise ModelError(
                f"{file.path}: tensor {ROPE_DIVISORS!r} has shape {list(info.shape)}; expected [{rotary_dim // 2}]"
            )
        return DivisorScaling(tuple(dequantize(file.raw(ROPE_DIVISORS), info.block_type, torch.float32)[0].tolist()))
    kind = fields.text("llama.rope.scaling.type", "none")
    if kind == "none":
        legacy = fields.number("llama.rope.scale_linear", 1.0)
        return None if legacy == 1.0 else LinearScaling(legacy)
    if kind == "linear":
        return LinearScaling(fields.number("llama.rope.scaling.factor"))
    raise ModelError(f"{file.path}: 'llama.rope.scaling.type' is {kind!r}; supported are none, linear")


def _end_token_ids(fields: Fields) -> tuple[int, ...]:
    ids = [token_id for key in _END_TOKEN_KEYS for token_id in fields.token_ids(f"tokenizer.ggml.{key}")]
    return tuple(dict.fromkeys(ids))


def _native_dtype(file: GGUFFile) -> str:
    """The float type of most weight bytes; quantized weights have none, and bfloat16 is what they were made from."""
    bytes_by_type: dict[str, int] = {}
    for info in file.tensors.values():
        bytes_by_type[info.block_type.name] = bytes_by_type.get(info.block_type.name, 0) + info.num_bytes
    largest = max(bytes_by_type, key=lambda name: bytes_by_type[name], default="BF16")
    return _NATIVE_DTYPES.get(largest, "bfloat16")
