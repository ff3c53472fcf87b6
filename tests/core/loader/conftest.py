"""Builders of tiny checkpoints: a two-layer llama as a GGUF file or a Hugging Face folder, and raw GGUF bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize
from safetensors.torch import save_file

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 96, 2, 4, 2, 32, 160

GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_weights(*, tied: bool = True, bias: bool = False, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random fp32 weights under Hugging Face names. head_dim is not hidden_size / num_heads on purpose."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for part, shape in {
            "input_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "post_attention_layernorm": (HIDDEN,),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }.items():
            shapes[f"{prefix}.{part}.weight"] = shape
            if bias and part.startswith("self_attn"):
                shapes[f"{prefix}.{part}.bias"] = shape[:1]
    shapes["model.norm.weight"] = (HIDDEN,)
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def gguf_name(hf_name: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if hf_name in fixed:
        return fixed[hf_name]
    _, _, layer, *parts, suffix = hf_name.split(".")
    return f"blk.{layer}.{GGUF_PARTS['.'.join(parts)]}.{suffix}"


def interleave_heads(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """The row order of GGUF's q and k: row 2j of a head is its row j, row 2j + 1 its row j + half."""
    head_dim = tensor.shape[0] // num_heads
    order = [
        head * head_dim + (row // 2 if row % 2 == 0 else head_dim // 2 + row // 2)
        for head in range(num_heads)
        for row in range(head_dim)
    ]
    return tensor[torch.tensor(order)]


def stored_array(hf_name: str, tensor: torch.Tensor, kind: gguf.GGMLQuantizationType) -> np.ndarray[Any, Any]:
    """What a GGUF file of type `kind` stores for a tensor: 2-D ones in blocks, 1-D ones in float32."""
    if ".q_proj." in hf_name:
        tensor = interleave_heads(tensor, HEADS)
    elif ".k_proj." in hf_name:
        tensor = interleave_heads(tensor, KV_HEADS)
    array = tensor.numpy()
    return quantize(array, kind) if tensor.ndim == 2 else array


@dataclass(frozen=True)
class TinyGGUF:
    """Options of a GGUF file to write."""

    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
    metadata: Mapping[str, Any] | None = None
    drop: Sequence[str] = ()
    extra_tensors: Mapping[str, torch.Tensor] | None = None


DEFAULT_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.context_length": 512,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INTERMEDIATE,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.key_length": HEAD_DIM,
    "llama.attention.value_length": HEAD_DIM,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": HEAD_DIM,
    "llama.vocab_size": VOCAB,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [f"token {index}" for index in range(VOCAB)],
    "tokenizer.ggml.token_type": [1] * VOCAB,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.chat_template": "{{ messages[0]['content'] }}",
}


def write_tiny_gguf(path: Path, weights: Mapping[str, torch.Tensor], options: TinyGGUF = TinyGGUF()) -> Path:
    """Writes a GGUF file with the reference writer; `metadata` replaces or adds keys, and None drops one."""
    metadata = {**DEFAULT_METADATA, **(options.metadata or {})}
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture"))
    for key, value in metadata.items():
        if value is None or key in options.drop:
            continue
        adders: dict[type, Callable[[str, Any], None]] = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        adders[type(value)](key, value)
    for name, tensor in weights.items():
        kind = options.kind if tensor.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), stored_array(name, tensor, options.kind), raw_dtype=kind)
    for name, tensor in (options.extra_tensors or {}).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


DEFAULT_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def write_tiny_hf(
    folder: Path, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any] | None = None, *, num_shards: int = 1
) -> Path:
    """Writes config.json and the weights, in `num_shards` files; a None in `config` drops the key."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = {key: value for key, value in {**DEFAULT_CONFIG, **(config or {})}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(merged))
    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        names = sorted(tensors)[shard::num_shards]
        save_file({name: tensors[name] for name in names}, folder / file)
        weight_map.update(dict.fromkeys(names, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def gguf_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def gguf_metadata(key: str, type_id: int, payload: bytes) -> bytes:
    return gguf_string(key) + struct.pack("<I", type_id) + payload


def gguf_tensor(name: str, dims: Sequence[int], type_id: int, offset: int) -> bytes:
    return gguf_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)


def gguf_bytes(
    metadata: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    num_metadata: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    """A GGUF file from its parts, so that each part can be wrong; data starts at the next multiple of 32."""
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(metadata) if num_metadata is None else num_metadata,
    )
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join([*metadata, *tensors])
    return header + bytes(-len(header) % 32) + data


@dataclass(frozen=True)
class Tiny:
    """The builders above, for tests."""

    weights: Callable[..., dict[str, torch.Tensor]]
    write_gguf: Callable[..., Path]
    write_hf: Callable[..., Path]
    gguf_options: type[TinyGGUF]
    gguf_name: Callable[[str], str]
    stored_array: Callable[..., np.ndarray[Any, Any]]
    interleave_heads: Callable[[torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True)
class RawGGUF:
    """Builders of GGUF files byte by byte."""

    file: Callable[..., bytes]
    string: Callable[[str | bytes], bytes]
    metadata: Callable[[str, int, bytes], bytes]
    tensor: Callable[[str, Sequence[int], int, int], bytes]


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    return Tiny(tiny_weights, write_tiny_gguf, write_tiny_hf, TinyGGUF, gguf_name, stored_array, interleave_heads)


@pytest.fixture(scope="session")
def raw_gguf() -> RawGGUF:
    return RawGGUF(gguf_bytes, gguf_string, gguf_metadata, gguf_tensor)
