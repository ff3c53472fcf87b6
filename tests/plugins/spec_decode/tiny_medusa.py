"""Tiny random Medusa heads in each published layout, and what plain PyTorch guesses with them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

__all__ = ["LAYOUTS", "TinyMedusa"]

LAYOUTS = (
    "fasterdecoding",
    "fasterdecoding pickled",
    "vllm",
    "vllm shared",
    "target's head",
    "truncated",
    "target's rows",
)


@dataclass
class TinyMedusa:
    """Heads for a target with `hidden_size` and `vocab_size`; `config` joins config.json."""

    hidden_size: int = 32
    vocab_size: int = 64
    num_heads: int = 3
    num_layers: int = 1
    seed: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        size = self.hidden_size

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator) / math.sqrt(size)

        heads, layers = range(self.num_heads), range(self.num_layers)
        self.weights = [[normal(size, size) * 2 for _ in layers] for _ in heads]
        self.biases = [[normal(size) for _ in layers] for _ in heads]
        self.outputs = [normal(self.vocab_size, size) for _ in heads]
        self.token_map = torch.randperm(self.vocab_size, generator=generator)[: self.vocab_size // 2].sort().values

    def write(self, folder: Path, layout: str = "fasterdecoding") -> Path:
        """Writes the files of a layout, one of LAYOUTS, and returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        # Files on the hub state a number of heads that need not be right.
        (folder / "config.json").write_text(json.dumps({"medusa_num_heads": 2, **self.config}))
        tensors = self.tensors(layout)
        if layout == "fasterdecoding pickled":
            torch.save(tensors, folder / "medusa_lm_head.pt")
        elif layout == "fasterdecoding":
            save_file(tensors, folder / "medusa_lm_head.safetensors")
        else:
            save_file(tensors, folder / "model.safetensors")
        return folder

    def tensors(self, layout: str) -> dict[str, torch.Tensor]:
        """By their names in the layout."""
        is_first = layout.startswith("fasterdecoding")
        block = "{head}.{layer}.linear.{kind}" if is_first else "blocks.{head}.layers.{layer}.{kind}"
        tensors: dict[str, torch.Tensor] = {}
        for head in range(self.num_heads):
            for layer in range(self.num_layers):
                tensors[block.format(head=head, layer=layer, kind="weight")] = self.weights[head][layer]
                tensors[block.format(head=head, layer=layer, kind="bias")] = self.biases[head][layer]
            if is_first:
                tensors[f"{head}.{self.num_layers}.weight"] = self.outputs[head]
            elif layout == "vllm":
                tensors[f"lm_heads.{head}.weight"] = self.outputs[head]
            elif layout == "truncated":
                tensors[f"lm_heads.{head}.weight"] = self.outputs[head][self.token_map]
        if layout == "vllm shared":
            tensors["lm_head.weight"] = self.outputs[0]
        if layout in ("truncated", "target's rows"):
            tensors["token_map"] = self.token_map
        return tensors

    def guesses(self, layout: str, hidden: torch.Tensor, target_head: torch.Tensor, num_ranks: int) -> list[list[int]]:
        """Per head the best tokens for one final state [H], written out token by token. target_head: [V, H]."""
        found: list[list[int]] = []
        for head in range(self.num_heads):
            state = hidden
            for weight, bias in zip(self.weights[head], self.biases[head], strict=True):
                inner = weight @ state + bias
                state = state + inner * torch.sigmoid(inner)
            shared = {"vllm shared": self.outputs[0], "target's head": target_head, "target's rows": target_head}
            output = shared.get(layout, self.outputs[head])
            scores = (output @ state).tolist()
            allowed = self.token_map.tolist() if layout in ("truncated", "target's rows") else range(self.vocab_size)
            found.append(sorted(allowed, key=lambda token: -scores[token])[:num_ranks])
        return found
