"""The plain model: greedy decoding by full recomputation in Transformers, one sequence at a time, no cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["GAP", "ROUNDED_GAP", "PlainModel", "load_plain_model"]

GAP = 1e-4
"""A mismatch counts only where the plain model's best two logits differ by more than this."""
ROUNDED_GAP = 2e-2
"""The same where activations are rounded: one that lies between two codes may go to either."""


@dataclass(frozen=True, slots=True)
class PlainModel:
    """A model to compare with, and what may be a near tie."""

    module: Any
    gap: float = GAP

    @torch.inference_mode()
    def greedy(self, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
        """The next `num_tokens` tokens, end-of-sequence ignored."""
        ids = list(prompt)
        for _ in range(num_tokens):
            ids.append(int(self._logits(ids)[-1].argmax()))
        return ids[len(prompt) :]

    @torch.inference_mode()
    def assert_greedy(self, prompt: list[int], output: list[int]) -> None:
        """Asserts that `output` is what greedy decoding gives, up to the first near tie: nothing behind it counts."""
        logits = self._logits(prompt + output)[len(prompt) - 1 : -1]  # [len(output), V]
        for position, token_id in enumerate(output):
            best = logits[position].topk(2)
            if token_id != int(best.indices[0]):
                gap = float(best.values[0] - best.values[1])
                assert gap <= self.gap, (
                    f"output position {position}: got {token_id}, plain model says {int(best.indices[0])} "
                    f"(top-2 gap {gap:.2e}) after {output[:position]}"
                )
                return

    def _logits(self, ids: list[int]) -> torch.Tensor:
        logits: torch.Tensor = self.module(torch.tensor([ids])).logits[0].float()
        return logits


@cache
def load_plain_model(folder: Path, *, rounds_activations: bool = False) -> PlainModel:
    """Loads a Hugging Face folder in fp32; `rounds_activations`: linear layers get theirs in int8, by row and 32."""
    from transformers import AutoModelForCausalLM

    module: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    module.eval()
    if not rounds_activations:
        return PlainModel(module)
    for name, layer in module.named_modules():
        if name.endswith("_proj"):
            layer.register_forward_pre_hook(_round_input)
    return PlainModel(module, ROUNDED_GAP)


def _round_input(_layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    groups = inputs[0].reshape(*inputs[0].shape[:-1], -1, 32)
    scale = groups.abs().amax(dim=-1, keepdim=True) / 127
    return (((groups / scale).round() * scale).flatten(-2),)
