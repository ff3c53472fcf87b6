"""The side of `cpu_peers.py` that runs in an engine's own interpreter: reads work as JSON lines, answers with times.

Only the standard library is used here, since each peer has an environment of its own. What engines print goes to
stderr, so that stdout holds answers alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

__all__ = ["Item", "Peer", "Score", "Settings", "serve"]


class Item(TypedDict):
    """One request of a workload."""

    prompt: list[int]
    max_tokens: int


class Settings(NamedTuple):
    """What `cpu_peers.py` asks of every engine; each takes what it knows."""

    gguf: str
    folder: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool
    score_every: int
    """`Peer.score` of an engine that must be asked place by place looks at each so-manieth only."""
    extra: list[str]
    """Settings of this engine alone, as the command line gave them."""


class Score(NamedTuple):
    """What an engine says of one place of a given text."""

    position: int
    """In its window; at least 1, as nothing stands before the first token."""
    likeliest: int | None
    """The token that greedy decoding would put there; None where the engine was not asked."""
    logprob: float | None
    """Log-probability of the token that is there, natural; None where the engine does not tell."""


class Peer(ABC):
    """One engine, loaded."""

    name: str
    version: str

    @abstractmethod
    def run(self, items: list[Item]) -> list[list[int]]:
        """Runs all requests at once, greedy, each to exactly its `max_tokens`.

        Returns:
            The output token ids of each request.
        """

    @abstractmethod
    def reset(self) -> bool:
        """Empties the prefix cache. False where the engine cannot: it is then started anew for each cold run."""

    def score(self, windows: list[list[int]]) -> list[list[Score]]:
        """Judges given text (teacher forcing). An engine whose interface does not let it returns nothing.

        Args:
            windows: token ids; the first of each is context only.

        Returns:
            The places of each window, in order.
        """
        return [[] for _ in windows]


def serve(load: Callable[[Settings], Peer]) -> None:
    """Loads the engine, says so, then does what each line of stdin asks for, until that ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    start_s = time.perf_counter()
    peer = load(Settings(**json.loads(sys.argv[1])))
    loaded: dict[str, Any] = {"name": peer.name, "version": peer.version}
    loaded |= {"load_s": time.perf_counter() - start_s, "can_reset": peer.reset()}
    print(json.dumps(loaded), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(peer, json.loads(line))), file=answers, flush=True)


def _answer(peer: Peer, asked: dict[str, Any]) -> dict[str, Any]:
    """{"items": a workload} runs it, {"windows": token ids} judges text."""
    if "windows" in asked:
        return {"scores": peer.score(asked["windows"])}
    peer.reset()
    start_s = time.perf_counter()
    token_ids = peer.run(asked["items"])
    return {"wall_s": time.perf_counter() - start_s, "token_ids": token_ids}
