"""A tiny random Llama in a Hugging Face folder: config.json, model.safetensors and, when asked, a byte-level tokenizer.

Import it as `from tests.tiny_model import write_tiny_llama`. Greedy decoding of these weights wanders through the whole
vocabulary instead of falling into a loop, and its top-2 gaps are far above fp32 noise, so token ids can be compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

__all__ = ["BYTE_CHAT_TEMPLATE", "write_byte_tokenizer", "write_tiny_llama"]

BYTE_CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def write_tiny_llama(
    folder: Path,
    *,
    num_layers: int = 2,
    vocab_size: int = 256,
    hidden_size: int = 64,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    intermediate_size: int = 128,
    max_position: int = 512,
    tied: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    scale: float = 2.5,
    sharpness: float = 3.0,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    rope_scaling: Mapping[str, Any] | None = None,
    with_tokenizer: bool = False,
    extra_config: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the model and returns `folder` (made if needed).

    Args:
        scale: standard deviation of the logits.
        sharpness: standard deviation of the attention scores. At 3 a head looks at few positions and output keeps
            changing; near 0 it averages over all of them and greedy output soon repeats itself, which drafters need.
        rope_scaling: the config's `rope_scaling` entry, e.g. {"rope_type": "linear", "factor": 2.0}.
        with_tokenizer: also writes tokenizer.json (token id = byte; needs vocab_size >= 256) with a chat template.
        extra_config: keys that replace or join those of config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "max_position_embeddings": max_position,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": dict(rope_scaling) if rope_scaling is not None else None,
        "tie_word_embeddings": tied,
        "attention_bias": attention_bias,
        "mlp_bias": mlp_bias,
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": str(dtype).removeprefix("torch."),
        **(extra_config or {}),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    weights = _random_weights(config, seed, scale, sharpness)
    save_file({name: tensor.to(dtype) for name, tensor in weights.items()}, folder / "model.safetensors")
    if with_tokenizer:
        write_byte_tokenizer(folder)
    return folder


def _random_weights(config: Mapping[str, Any], seed: int, scale: float, sharpness: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = int(config["hidden_size"])

    def normal(std: float, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * std

    def norm_weight() -> torch.Tensor:
        # Random signs: the residual stream still holds the input's embedding, and with a tied head plain positive
        # weights would make every token predict itself.
        signs = torch.randint(0, 2, (hidden,), generator=generator) * 2.0 - 1.0
        return signs * (0.75 + 0.5 * torch.rand(hidden, generator=generator))

    head_std = scale / math.sqrt(hidden)
    weights = {"model.embed_tokens.weight": normal(head_std, int(config["vocab_size"]), hidden)}
    for layer in range(int(config["num_hidden_layers"])):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = norm_weight()
        for name, (rows, columns, std) in _projections(config, sharpness).items():
            weights[f"{prefix}{name}.weight"] = normal(std, rows, columns)
            if config["attention_bias" if name.startswith("self_attn") else "mlp_bias"]:
                weights[f"{prefix}{name}.bias"] = normal(0.3, rows)
    weights["model.norm.weight"] = norm_weight()
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(head_std, int(config["vocab_size"]), hidden)
    return weights


def _projections(config: Mapping[str, Any], sharpness: float) -> dict[str, tuple[int, int, float]]:
    """Per projection: output features, input features, std of the weights."""
    hidden, ffn = int(config["hidden_size"]), int(config["intermediate_size"])
    q_size = int(config["num_attention_heads"]) * int(config["head_dim"])
    kv_size = int(config["num_key_value_heads"]) * int(config["head_dim"])
    # Inputs of q and k have unit variance per element, and scores are divided by sqrt(head_dim): their std is the
    # product of the two projections' gains.
    qk_std = math.sqrt(sharpness / hidden)
    unit = 1.0 / math.sqrt(hidden)
    return {
        "self_attn.q_proj": (q_size, hidden, qk_std),
        "self_attn.k_proj": (kv_size, hidden, qk_std),
        "self_attn.v_proj": (kv_size, hidden, unit),
        "self_attn.o_proj": (hidden, q_size, 2.0 / math.sqrt(q_size)),
        "mlp.gate_proj": (ffn, hidden, unit),
        "mlp.up_proj": (ffn, hidden, unit),
        "mlp.down_proj": (hidden, ffn, 2.0 / math.sqrt(ffn)),
    }


def write_byte_tokenizer(folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json of a tokenizer whose token ids are the bytes of UTF-8."""
    byte_level: dict[str, Any] = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", **byte_level},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {character: byte for byte, character in enumerate(_byte_characters())},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": BYTE_CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies."""
    characters: list[str] = []
    num_substituted = 0
    for byte in range(256):
        is_printable = 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE
        characters.append(chr(byte if is_printable else 256 + num_substituted))
        num_substituted += not is_printable
    return characters
