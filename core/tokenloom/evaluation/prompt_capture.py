"""Keeps the final hidden states behind prompt logprobs, from which a model's head makes whole distributions."""

from __future__ import annotations

from typing import final

import torch

from tokenloom.engine_tap import EngineTap
from tokenloom.errors import ConfigError
from tokenloom.executors.local import LocalExecutor
from tokenloom.interfaces.executor import Executor
from tokenloom.models.causal_lm import CausalLM

__all__ = ["PromptCapture"]


@final
class PromptCapture(EngineTap):
    """Hears one request at a time. States are far smaller than logits, and give them again exactly."""

    def __init__(self) -> None:
        self._model: CausalLM | None = None
        self._pieces: list[torch.Tensor] = []

    @property
    def model(self) -> CausalLM:
        """The model of the engine that this listens to; it stays usable when the engine is closed."""
        assert self._model is not None, "no engine was built with this tap"
        return self._model

    def take(self) -> torch.Tensor:
        """States [num_prompt_tokens - 1, H] of the request that has ended; they are forgotten here."""
        states = torch.cat(self._pieces)  # [n, H]
        self._pieces.clear()
        return states

    def executor(self, inner: Executor) -> Executor:
        if not isinstance(inner, LocalExecutor):
            raise ConfigError(f"{type(inner).__name__} computes no distributions to compare; choose executor=local")
        self._model = inner.capture_prompts(lambda states: self._pieces.append(states.clone()))
        return inner
