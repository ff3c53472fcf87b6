"""When a drafter with KV memory of its own hears of verified tokens, and that it hears of each once, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast, final

import pytest
import torch

from tokenloom.batch import BlockCopy, BlockTableUpdate, BlockTransfers, NewRow, RowPlan, StepPlan
from tokenloom.batch_state import BatchState
from tokenloom.draft_passes import DraftPasses
from tokenloom.draft_proposals import DraftProposals, DraftTask
from tokenloom.interfaces.draft_memory import DraftKVGroup
from tokenloom.interfaces.spec_decode import DraftBatch, Drafter, DrafterNeeds, Proposal
from tokenloom.sampled_rows import SampledRows
from tokenloom.sampling_params import SamplingParams

CPU = torch.device("cpu")
CAPACITY = 12
LAYER = 3
COPY = BlockTransfers(copies=(BlockCopy(sources=(1,), targets=(2,)),))


@final
class Listener(Drafter):
    """Writes down per call what it heard of each request: (first position, states of the new tokens, max_drafts)."""

    def __init__(self, window: int | None = None) -> None:
        self._window = window
        self.calls: list[dict[str, tuple[int, list[float], int]]] = []
        self.num_tokens: list[dict[str, int]] = []

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds((LAYER,), (DraftKVGroup(1, 1, 4, lookahead=1, window=self._window),), "listener")

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        assert batch.cu_hidden is not None
        bounds, states = batch.cu_hidden.tolist(), batch.hidden_states[LAYER][:, 0].tolist()
        assert bounds[-1] == len(states), "one state for each new token"
        self.calls.append(
            {
                request_id: (batch.first_positions[place], states[bounds[place] : bounds[place + 1]], limit)
                for place, (request_id, limit) in enumerate(zip(batch.request_ids, batch.max_drafts, strict=True))
            }
        )
        counts = [len(token_ids) for token_ids in batch.token_ids]
        self.num_tokens.append(dict(zip(batch.request_ids, counts, strict=True)))
        return [Proposal((1,) * min(1, limit)) for limit in batch.max_drafts]

    def forget(self, request_ids: Sequence[str]) -> None:
        """Keeps no state of requests."""


@final
@dataclass
class Life:
    """Requests of prompts of 3 tokens, and one new token of each in every step; states are 100 x request + position."""

    listener: Listener = field(default_factory=Listener)
    capacity: int = CAPACITY
    positions: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = BatchState(8, 64, 4, 2, 50, CPU)
        memory = cast(DraftPasses, object())
        self.proposals = DraftProposals(
            DraftTask(self.listener, "spec_decode=test", self.state, memory, True, 50, CPU, self.capacity)
        )

    def step(self, limits: dict[str, int], *, removed: Sequence[str] = (), moves: Any = None) -> bool:
        """One step of these requests, and the drafts that each wants; returns whether propose() had anything to do."""
        updates = (BlockTableUpdate.unchanged(0, 0),) * 2
        for request_id in removed:
            self.positions.pop(request_id, None)
        rows = []
        for request_id, limit in limits.items():
            first, count, new = self.positions.get(request_id, 0), 1, None
            if first == 0:
                count, new = 3, NewRow([5, 6, 7], 3, SamplingParams(), 0, 0)
            rows.append(RowPlan(request_id, first, count, (), updates, samples=True, new=new, max_drafts=limit))
        plan = StepPlan(0, tuple(rows), tuple(removed), moves or BlockTransfers())
        self.proposals.settle(plan)
        self.state.remove(removed)
        self.state.update(rows)
        first_rows, states = [], list[float]()
        for row in rows:
            first_rows.append(len(states))
            positions = range(row.num_computed_tokens, row.num_computed_tokens + row.num_scheduled_tokens)
            states += [100.0 * int(row.request_id[1:]) + position for position in positions]
            self.positions[row.request_id] = positions.stop
            self.state.append_tokens(self.state.row(row.request_id), [9])
        sampled = SampledRows({request_id: [9] for request_id in limits}, {}, {}, {})
        captured = {LAYER: torch.tensor(states)[:, None].expand(-1, 2)}
        return self.proposals.propose(plan, first_rows, sampled, captured) is not None

    def heard(self) -> dict[str, list[float]]:
        """Per request, all states that the drafter has heard of; their order is that of positions."""
        found: dict[str, list[float]] = {}
        for call in self.listener.calls:
            for request_id, (first, states, _) in call.items():
                own = found.setdefault(request_id, [])
                assert first == len(own), f"{request_id}: position {first} after {len(own)}"
                own.extend(states)
        return found


def test_it_hears_of_all_tokens_before_it_is_asked() -> None:
    life = Life()
    for _ in range(3):
        life.step({"r0": 0, "r1": 0})
    assert life.listener.calls == [], "nobody wanted drafts"
    life.step({"r0": 0, "r1": 2})
    late, asked = life.listener.calls
    assert late == {"r0": (0, [0, 1, 2, 3, 4], 0), "r1": (0, [100, 101, 102, 103, 104], 0)}
    assert asked == {"r0": (5, [5], 0), "r1": (5, [105], 2)}
    assert life.listener.num_tokens == [{"r0": 6, "r1": 6}, {"r0": 7, "r1": 7}], "the frontier's token, and none behind"


def test_it_hears_of_everything_before_a_request_leaves_full_blocks() -> None:
    """Of the others as well, for it may have found a prefix of theirs."""
    life = Life()
    for _ in range(3):  # the entries of a block of 4 depend on 5 tokens
        life.step({"r0": 0, "r1": 0})
    life.step({"r0": 0}, removed=["unknown"])
    assert life.listener.calls == [], "nothing waits of that one"
    life.step({"r0": 0}, removed=["r1", "unknown"])
    assert life.listener.calls == [{"r0": (0, [0, 1, 2, 3, 4, 5], 0), "r1": (0, [100, 101, 102, 103, 104], 0)}]
    life.step({"r0": 1})
    assert life.heard()["r0"] == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("num_steps", [1, 2])
def test_of_a_request_that_leaves_no_full_block_it_need_not_hear(num_steps: int) -> None:
    life = Life()
    for _ in range(num_steps):
        life.step({"r0": 0, "r1": 0})
    life.step({"r0": 0}, removed=["r1"])
    assert life.listener.calls == []
    life.step({"r0": 1})
    assert life.heard() == {"r0": [*range(num_steps + 4)]}


def test_room_of_what_need_not_be_told_is_free_again() -> None:
    life = Life(capacity=3)
    life.step({"r0": 0})
    life.step({"r1": 0}, removed=["r0"])
    life.step({"r2": 0}, removed=["r1"])
    assert life.listener.calls == []
    life.step({"r2": 1})
    assert life.heard() == {"r2": [200, 201, 202, 203]}


def test_of_a_request_that_leaves_only_full_blocks_are_told() -> None:
    life = Life()
    for _ in range(4):
        life.step({"r0": 0, "r1": 0})
    life.step({"r0": 0, "r1": 0}, moves=COPY)
    assert life.heard()["r1"] == [100, 101, 102, 103, 104, 105]
    life.step({"r0": 0, "r1": 0})
    life.step({"r0": 0}, removed=["r1"])
    assert len(life.listener.calls) == 1, "its second block has 3 entries"


def test_a_request_that_comes_back_starts_anew() -> None:
    life = Life()
    life.step({"r0": 0, "r1": 0})
    life.step({"r0": 0, "r1": 0}, removed=["r1"])
    life.step({"r0": 0, "r1": 1})
    assert [call["r1"] for call in life.listener.calls] == [(0, [100, 101, 102], 0), (3, [103], 1)]


def test_it_hears_of_everything_before_blocks_are_copied() -> None:
    life = Life()
    life.step({"r0": 0, "r1": 0})
    life.step({"r0": 0, "r1": 0}, moves=COPY)
    assert life.heard() == {"r0": [0, 1, 2], "r1": [100, 101, 102]}


@pytest.mark.parametrize("num_steps", [1, 4, 9, 30])
def test_no_more_waits_than_there_is_room_for(num_steps: int) -> None:
    life = Life()
    requests = [f"r{number}" for number in range(4)]
    for _ in range(num_steps):
        life.step(dict.fromkeys(requests, 0))
    heard = sum(len(states) for states in life.heard().values())
    waiting = 4 * (3 + num_steps - 1) - heard
    assert 0 <= waiting <= CAPACITY
    assert max((sum(len(of) for _, of, _ in call.values()) for call in life.listener.calls), default=0) <= CAPACITY
    life.step(dict.fromkeys(requests, 1))
    assert life.heard() == {
        f"r{number}": [100 * number + position for position in range(num_steps + 3)] for number in range(4)
    }


def test_a_step_of_more_tokens_than_fit_is_told_at_once() -> None:
    life = Life(capacity=5)
    life.step({"r0": 0})
    life.step({"r1": 0, "r2": 0})
    assert life.listener.calls == [
        {"r0": (0, [0, 1, 2], 0)},
        {"r1": (0, [100, 101, 102], 0), "r2": (0, [200, 201, 202], 0)},
    ]


def test_nothing_waits_for_memory_with_a_window() -> None:
    """The block of a token that waits would have left the window."""
    life = Life(Listener(window=4))
    for _ in range(3):
        assert life.step({"r0": 0})
    assert [len(call["r0"][1]) for call in life.listener.calls] == [3, 1, 1]
