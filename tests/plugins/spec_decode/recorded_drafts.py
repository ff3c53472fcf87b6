"""Runs a drafter in the engine, records what it was told and proposed, and works both out again without any memory.

Two rounds of the same prompts, some of which share their beginning, so that the second round finds the first one's
blocks; draft lengths change with every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import final

import torch

from tokenloom.interfaces.spec_decode import DraftBatch, Drafter, DrafterNeeds, Proposal
from tokenloom.request import RequestView
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.drafter_rig import NoDrafts
from tokenloom.testing.engine_harness import ChosenDrafts
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom.testing.tiny_engine import TinyEngine, TinySettings

__all__ = ["GREEDY", "MODEL", "LogProbs", "Recorder", "chain_of", "run_twice", "tree_of"]

MODEL = TinyDecoder()
GREEDY = SamplingParams(temperature=0.0, max_tokens=14)
PROMPTS = ([3, 1, 4], [1, 5, 9, 2], [6, 5, 3, 5, 8], [9, 7, 9] * 4, [9, 7, 9] * 4 + [5], [7], [9, 7, 9] * 4 + [8, 1])
LogProbs = Callable[[Sequence[int]], dict[int, float]]
"""Log-probabilities of the tokens that can be drafted behind some drafts."""


@final
class Recorder(Drafter):
    """Passes calls on, and keeps the target's states by the tokens up to each, and every proposal."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.states: dict[tuple[int, ...], dict[int, torch.Tensor]] = {}
        self.proposed: list[tuple[tuple[int, ...], int, bool, Proposal]] = []
        """(tokens, max_drafts, chain_only, proposal) of all that proposed something."""

    def needs(self) -> DrafterNeeds:
        return self._inner.needs()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        proposals = self._inner.propose(batch)
        assert batch.cu_hidden is not None
        for place, token_ids in enumerate(batch.token_ids):
            tokens = tuple(token_ids.tolist())
            for row in range(int(batch.cu_hidden[place]), int(batch.cu_hidden[place + 1])):
                end = batch.first_positions[place] + row - int(batch.cu_hidden[place]) + 1
                self.states[tokens[:end]] = {layer: rows[row].clone() for layer, rows in batch.hidden_states.items()}
            if proposals[place].token_ids:
                facts = batch.max_drafts[place], batch.chain_only[place]
                self.proposed.append((tokens, *facts, proposals[place]))
        return proposals

    def forget(self, request_ids: Sequence[str]) -> None:
        self._inner.forget(request_ids)

    def features(self, tokens: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
        """[F, layers * H]: the target's states behind all but the last token."""
        states = [self.states[tuple(tokens[:end])] for end in range(1, len(tokens))]
        return torch.stack([torch.cat([state[layer] for layer in layers]) for state in states])


def run_twice(drafter: Drafter, settings: TinySettings, most_drafts: int = 4) -> tuple[Recorder, TinyEngine]:
    """Runs everything, and expects the target's own output."""
    recorder = Recorder(drafter)

    def lengths(request: RequestView, _num_running: int) -> int:
        # In every third stretch of three tokens nobody drafts, so that whole steps go by without drafts.
        if request.num_tokens // 3 % 3 == 2:
            return 0
        return (request.num_tokens * 7 + len(request.request_id)) % (most_drafts + 1)

    engine = TinyEngine(MODEL, recorder, ChosenDrafts(lengths), settings)
    for turn in range(2):
        for number, prompt in enumerate(PROMPTS):
            engine.add(f"r{number}.{turn}", prompt, GREEDY)
        engine.run()
    assert engine.outputs == {f"{name}.{turn}": tokens for name, tokens in _plain().items() for turn in range(2)}
    assert engine.engine.kv_usage()["active"] == 0
    return recorder, engine


@cache
def _plain() -> dict[str, list[int]]:
    engine = TinyEngine(MODEL, NoDrafts())
    for number, prompt in enumerate(PROMPTS):
        engine.add(f"r{number}", prompt, GREEDY)
    return engine.run()


def chain_of(log_probs: LogProbs, num_drafts: int, least: float = -math.inf) -> Proposal:
    """The likeliest token at each depth, as long as log-probabilities sum up to `least`."""
    drafts: list[int] = []
    value = 0.0
    for _ in range(num_drafts):
        scores = log_probs(drafts)
        best = max(scores, key=lambda token: scores[token])
        value += scores[best]
        if value < least:
            break
        drafts.append(best)
    return Proposal(tuple(drafts))


def tree_of(log_probs: LogProbs, max_nodes: int, width: int, least: float = -math.inf) -> Proposal:
    """The tree of `GrowingTree`, by its paths; as many nodes grow as there are slots: max_nodes - 1."""
    found: dict[tuple[int, ...], float] = {}
    growing: list[tuple[int, ...]] = [()]
    num_grown = 0
    while growing:
        fresh: dict[tuple[int, ...], float] = {}
        for path in growing:
            scores = log_probs(path)
            for token in sorted(scores, key=lambda token: -scores[token])[:width]:
                fresh[*path, token] = found.get(path, 0.0) + scores[token]
        fresh = {path: value for path, value in fresh.items() if value >= least}
        found |= fresh
        count = max(0, min(width, max_nodes - 1 - num_grown))
        growing = sorted(fresh, key=lambda path: -fresh[path])[:count]
        num_grown += len(growing)
    chosen = sorted(found, key=lambda path: -found[path])[:max_nodes]
    parents = tuple(chosen.index(path[:-1]) if path[:-1] else -1 for path in chosen)
    ids = tuple(path[-1] for path in chosen)
    return Proposal(ids) if parents == tuple(range(-1, len(ids) - 1)) else Proposal(ids, parents)
