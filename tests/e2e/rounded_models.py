"""The tiny model as quant plugins round it: as a plain folder to compare with, and in blocks of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file, save_file

from tests.core.loader.gguf_conversion import Conversion, write_gguf
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom_quant.low_bit.affine_codes import round_to_codes

__all__ = ["write_in_blocks", "write_rounded"]

_WEIGHTS = "model.safetensors"


def write_rounded(folder: Path, quant: str, tiny_folder: Path, in_blocks: Path) -> Path:
    """Writes the model with the weights that `quant` computes with.

    Args:
        folder: where to; exists.
        quant: name of the plugin, with its default settings.
        tiny_folder: the model.
        in_blocks: the same as `write_in_blocks` has it.

    Returns:
        `folder`.
    """
    tensors = load_file(tiny_folder / _WEIGHTS)
    if quant == "gguf":
        checkpoint = open_checkpoint(in_blocks)
        tensors = {name: checkpoint.load(name) for name in tensors}
        checkpoint.close()
    else:
        linear = [name for name in tensors if name.endswith("_proj.weight")]
        tensors |= {name: _ROUNDED[quant](tensors[name]) for name in linear}
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_bytes((tiny_folder / "config.json").read_bytes())
    return folder


def write_in_blocks(path: Path, tiny_folder: Path) -> Path:
    """Writes the model as a GGUF file with all matrices in blocks of four bits, and returns `path`."""
    vocab_size = json.loads((tiny_folder / "config.json").read_text())["vocab_size"]
    tokens = json.loads((tiny_folder / "tokenizer.json").read_text())["model"]["vocab"]
    unused = ["qj", *(f"<unused {number}>" for number in range(vocab_size - len(tokens) - 1))]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*sorted(tokens, key=tokens.__getitem__), *unused],
        "tokenizer.ggml.token_type": [1] * len(tokens) + [5] * len(unused),
        "tokenizer.ggml.merges": ["q j"],  # the format has no empty lists
    }
    return write_gguf(tiny_folder, path, Conversion(kind=gguf.GGMLQuantizationType.Q4_1, metadata=metadata))


def _rounded_to_int8(weight: torch.Tensor) -> torch.Tensor:
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / scale).round().clamp(-127, 127) * scale


_ROUNDED: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int8": _rounded_to_int8,
    "int8_dynamic": lambda weight: round_to_codes(weight, 8, None, symmetric=True).dequantized(),
    "int4": lambda weight: round_to_codes(weight, 4, 32, symmetric=False).dequantized(),
}
