"""The target's states over whole conversations, heard from its engine: one conversation after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch

from tokenloom.drafter_training.conversations import Conversation
from tokenloom.engine_tap import EngineTap
from tokenloom.errors import ConfigError
from tokenloom.executors.local import LocalExecutor
from tokenloom.interfaces.executor import Executor
from tokenloom.llm import LLM
from tokenloom.sampling_params import SamplingParams

__all__ = ["StateCapture", "capture_states"]


@final
class StateCapture(EngineTap):
    """Keeps what the layers give while it listens. The engine must run without a prefix cache and without drafts."""

    def __init__(self) -> None:
        self._executor: LocalExecutor | None = None
        self._pieces: list[dict[int, torch.Tensor]] = []

    def executor(self, inner: Executor) -> Executor:
        if not isinstance(inner, LocalExecutor):
            raise ConfigError(f"{type(inner).__name__} has no states to train on; choose executor=local")
        self._executor = inner
        return inner

    def listen(self, layers: tuple[int, ...]) -> None:
        """Begins to keep the outputs of these layers."""
        assert self._executor is not None, "no engine was built with this tap"
        self._executor.capture_states(layers, self._hear)

    def take(self) -> dict[int, torch.Tensor]:
        """Per layer [T, H], of all that was heard since the last call."""
        joined = {layer: torch.cat([piece[layer] for piece in self._pieces]) for layer in self._pieces[0]}
        self._pieces.clear()
        return joined

    def _hear(self, captured: Mapping[int, torch.Tensor]) -> None:
        self._pieces.append({layer: states.to("cpu", copy=True) for layer, states in captured.items()})


def capture_states(llm: LLM, capture: StateCapture, conversations: Sequence[Conversation]) -> dict[str, torch.Tensor]:
    """Runs the target over conversations.

    Args:
        llm: built with `capture` among its taps, which listens; without prefix cache and drafts.
        capture: hears its states.
        conversations: in this order.

    Returns:
        Per layer, named by its number, [T, H] of all conversations behind one another.
    """
    pieces = []
    for number, conversation in enumerate(conversations):
        (output,) = llm.generate([list(conversation.token_ids)], SamplingParams(temperature=0.0, max_tokens=1))
        assert output.outputs[0].error is None, f"conversation {number} failed: {output.outputs[0].error}"
        states = capture.take()
        counts = {len(tensor) for tensor in states.values()}
        assert counts == {len(conversation.token_ids)}, f"{counts} states of {len(conversation.token_ids)} tokens"
        pieces.append(states)
    return {str(layer): torch.cat([piece[layer] for piece in pieces]) for layer in pieces[0]}
