"""Turns a Hugging Face folder into a GGUF file, the way that files in the wild are made.

Names come from the `gguf` package's own tables; rows, norms and metadata follow the format's conventions. So a loader
that agrees with the folder has read the file right.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from safetensors.torch import load_file

__all__ = ["Conversion", "gguf_names_of", "write_gguf"]

F32 = gguf.GGMLQuantizationType.F32

_ARCHITECTURES = {"gemma3_text": "gemma3", "mistral": "llama"}
_INTERLEAVED = ("llama", "smollm3")
_OFFSET_NORMS = ("gemma2", "gemma3")


@dataclass(frozen=True)
class Conversion:
    """What to write differently.

    Attributes:
        kind: type of every matrix whose rows it can hold.
        metadata: keys, those of the architecture without prefix; None drops a key.
        drop_tensors: GGUF names to leave out.
        extra_tensors: further ones.
        raw_tensors: GGUF name: (type, bytes) to write instead.
        num_parts: files to split over.
    """

    kind: gguf.GGMLQuantizationType = F32
    metadata: Mapping[str, Any] = field(default_factory=dict)
    drop_tensors: Sequence[str] = ()
    extra_tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    raw_tensors: Mapping[str, tuple[gguf.GGMLQuantizationType, np.ndarray[Any, Any]]] = field(default_factory=dict)
    num_parts: int = 1


def write_gguf(folder: Path, path: Path, conversion: Conversion = Conversion()) -> Path:
    """Converts `folder`; returns `path`, or the first part of it."""
    config = json.loads((folder / "config.json").read_text())
    architecture = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    split = conversion.num_parts > 1
    tensors = _stored_tensors(folder, config, architecture)
    limit = math.ceil((len(tensors) + len(conversion.extra_tensors)) / conversion.num_parts) if split else 0
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=limit)
    _add_metadata(writer, config, architecture)
    _change_metadata(writer, conversion.metadata, architecture)
    for name, tensor in (tensors | dict(conversion.extra_tensors)).items():
        if name in conversion.drop_tensors:
            continue
        if name in conversion.raw_tensors:
            kind, data = conversion.raw_tensors[name]
            writer.add_tensor(name, data, raw_dtype=kind)
            continue
        block_size = gguf.GGML_QUANT_SIZES[conversion.kind][0]
        kind = conversion.kind if tensor.ndim == 2 and tensor.shape[-1] % block_size == 0 else F32
        writer.add_tensor(name, quantize(tensor.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.with_name(f"{path.stem}-00001-of-{conversion.num_parts:05}.gguf") if split else path


def gguf_names_of(folder: Path) -> dict[str, str]:
    """{Hugging Face name: GGUF name} of every tensor of a folder."""
    config = json.loads((folder / "config.json").read_text())
    architecture = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    (kind,) = (kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    names = {name: table.get_name(name, try_suffixes=(".weight", ".bias")) for name in load_file(folder / _WEIGHTS)}
    assert all(names.values()), names
    return {name: str(gguf_name) for name, gguf_name in names.items()}


_WEIGHTS = "model.safetensors"


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _stored_tensors(folder: Path, config: Mapping[str, Any], architecture: str) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    names = gguf_names_of(folder)
    for name, tensor in load_file(folder / _WEIGHTS).items():
        stored = tensor.float()
        if architecture in _OFFSET_NORMS and name.endswith("norm.weight"):
            stored = stored + 1
        if architecture in _INTERLEAVED and (".q_proj." in name or ".k_proj." in name):
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            halves = stored.reshape(heads, 2, stored.shape[0] // heads // 2, *stored.shape[1:])
            stored = halves.swapaxes(1, 2).reshape(stored.shape)
        tensors[names[name]] = stored.contiguous()
    return tensors | _rope_tensors(config)


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope of layers with full attention, in one spelling."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope = dict(rope.get("full_attention", rope))
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    rope.setdefault("rope_type", rope.get("type", "default"))
    return rope


def _rope_tensors(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    rope, dim = _rope(config), _head_dim(config)
    if rope["rope_type"] == "longrope":
        return {
            "rope_factors_long.weight": torch.tensor(rope["long_factor"]),
            "rope_factors_short.weight": torch.tensor(rope["short_factor"]),
        }
    if rope["rope_type"] != "llama3":
        return {}
    wavelengths = 2 * math.pi * rope["rope_theta"] ** (torch.arange(0, dim, 2).double() / dim)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    smooth = (rope["original_max_position_embeddings"] / wavelengths - low) / (high - low)
    smooth = smooth.clamp(0.0, 1.0)
    return {"rope_freqs.weight": (1.0 / ((1.0 - smooth) / factor + smooth)).float()}


def _add_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any], architecture: str) -> None:
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(0)
    if config.get("head_dim") is not None:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if architecture in _INTERLEAVED:
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(_head_dim(config))
    for key, add in (("bos_token_id", writer.add_bos_token_id), ("eos_token_id", writer.add_eos_token_id)):
        if config.get(key) is not None:
            add(config[key])
    _add_rope(writer, config, architecture)
    if architecture in _OFFSET_NORMS:
        if config["sliding_window"] is not None:
            writer.add_sliding_window(config["sliding_window"])
        if config.get("attn_logit_softcapping"):
            writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        if config.get("final_logit_softcapping"):
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _add_rope(writer: gguf.GGUFWriter, config: Mapping[str, Any], architecture: str) -> None:
    rope = _rope(config)
    if architecture != "gemma2":
        writer.add_rope_freq_base(rope["rope_theta"])
    local = (config.get("rope_parameters") or {}).get("sliding_attention")
    if local is not None:
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if architecture == "phi3":
        share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        original = config.get("original_max_position_embeddings", config["max_position_embeddings"])
        writer.add_rope_dimension_count(int(share * config["hidden_size"]) // config["num_attention_heads"])
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_sliding_window(config.get("sliding_window") or 0)
        scale = config["max_position_embeddings"] / original
        if rope["rope_type"] == "longrope":
            factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1.0 else 1.0
            writer.add_rope_scaling_attn_factors(factor)
    elif rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        adders: dict[str, Callable[[Any], None]] = {
            "original_max_position_embeddings": writer.add_rope_scaling_orig_ctx_len,
            "attention_factor": writer.add_rope_scaling_yarn_attn_factor,
            "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
            "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
        }
        for key, add in adders.items():
            if rope.get(key) is not None:
                add(rope[key])


def _change_metadata(writer: gguf.GGUFWriter, changes: Mapping[str, Any], architecture: str) -> None:
    own = ("general.", "tokenizer.", "split.")
    for name, value in changes.items():
        key = name if name.startswith(own) else f"{architecture}.{name}"
        writer.kv_data[0].pop(key, None)
        adders: dict[type, Callable[[str, Any], None]] = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        if value is not None:
            adders[type(value)](key, value)
