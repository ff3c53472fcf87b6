"""BatchState: rows follow the plans, whoever joins, leaves and comes back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tokenloom.batch import BlockTableUpdate, NewRow, RowPlan
from tokenloom.batch_state import BatchState
from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.sampling_params import SamplingParams

CPU = torch.device("cpu")


def new_state(max_num_seqs: int = 3, num_groups: int = 1) -> BatchState:
    return BatchState(max_num_seqs, 16, 4, num_groups, 50, CPU)


def join(
    state: BatchState,
    name: str,
    tokens: Sequence[int],
    blocks: Sequence[int] = (),
    num_prompt_tokens: int | None = None,
    params: SamplingParams | None = None,
    **fields: object,
) -> None:
    prompt = len(tokens) if num_prompt_tokens is None else num_prompt_tokens
    new = NewRow(list(tokens), prompt, params or SamplingParams(temperature=0.0), 7, 0, **fields)  # type: ignore[arg-type]
    update(state, name, BlockTableUpdate(0, 0, tuple(blocks)), new=new)


def update(state: BatchState, name: str, *updates: BlockTableUpdate, new: NewRow | None = None) -> None:
    state.update([RowPlan(name, 0, 1, (), updates, True, new=new)])


def test_rows_are_slots_that_are_used_again() -> None:
    state = new_state(2)
    join(state, "a", [1, 2], [5])
    join(state, "b", [3], [6])
    assert {state.row("a"), state.row("b")} == {0, 1}
    row = state.row("a")
    state.remove(["a", "stranger"])
    assert not state.block_tables[0][row].any()
    join(state, "c", [9], [7])
    assert state.row("c") == row
    assert state.num_tokens[row] == 1
    with pytest.raises(KeyError):
        state.row("a")


def test_request_may_leave_and_come_back_in_one_step() -> None:
    state = new_state(1)
    join(state, "a", [1, 2, 3, 4, 5], [5, 6])
    state.remove(["a"])
    join(state, "a", [8], [7])
    assert state.block_tables[0][0].tolist() == [7, 0, 0, 0, 0]
    assert (state.num_tokens[0], state.token_ids[0, 0]) == (1, 8)


def test_joining_twice_is_our_bug() -> None:
    state = new_state()
    join(state, "a", [1])
    with pytest.raises(AssertionError, match="joins twice"):
        join(state, "a", [1])


def test_table_updates_follow_their_definition() -> None:
    """table := [0] * num_null + old[num_null:num_kept] + new, for random updates."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        state = new_state()
        table = list(rng.integers(1, 99, rng.integers(1, 4)))
        join(state, "other", [1], [77])
        join(state, "a", [1], table)
        for _ in range(3):
            kept = int(rng.integers(0, len(table) + 1))
            null = int(rng.integers(0, kept + 1))
            new = tuple(int(b) for b in rng.integers(1, 99, rng.integers(0, 6 - kept)))
            update(state, "a", BlockTableUpdate(null, kept, new))
            table = [0] * null + table[null:kept] + list(new)
            assert state.block_tables[0][state.row("a")].tolist() == table + [0] * (5 - len(table))
        assert state.block_tables[0][state.row("other")].tolist() == [77, 0, 0, 0, 0]


def test_groups_have_tables_of_their_own() -> None:
    state = new_state(num_groups=2)
    new = NewRow([1], 1, SamplingParams(), 0, 0)
    update(state, "a", BlockTableUpdate(0, 0, (3, 4)), BlockTableUpdate(1, 1, (5,)), new=new)
    assert [table[state.row("a")][:3].tolist() for table in state.block_tables] == [[3, 4, 0], [0, 5, 0]]


def test_tokens_are_appended_as_far_as_there_is_room() -> None:
    state = new_state()
    join(state, "a", range(15))
    row = state.row("a")
    state.append_tokens(row, [40])
    state.append_tokens(row, [41, 42, 43])
    assert state.num_tokens[row] == 17
    assert state.token_ids[row].tolist() == [*range(15), 40, 41]


# ---- sampling ----


def test_sampling_rows_follow_the_requests_not_their_order_in_the_batch() -> None:
    state = new_state()
    for index, name in enumerate("abc"):
        join(state, name, range(index + 2), num_prompt_tokens=1, params=SamplingParams(temperature=1.0 + index))
    batch = state.sampling(["c", "a"], [1, 1], [0, 0])
    assert batch.temperature.flatten().tolist() == [3.0, 1.0]
    assert batch.position.tolist() == [3, 1]
    batch = state.sampling(["a", "b", "c"], [1, 1, 1], [0, 0, 0])
    assert batch.temperature.flatten().tolist() == [1.0, 2.0, 3.0]


def test_positions_move_with_the_tokens_and_lead_for_drafts() -> None:
    state = new_state()
    join(state, "a", [1, 2])
    join(state, "b", [1, 2, 3], num_prompt_tokens=2)
    assert state.sampling(["a", "b"], [1, 1], [0, 0]).position.tolist() == [0, 1]
    state.append_tokens(state.row("a"), [5, 6])
    assert state.sampling(["a", "b"], [1, 1], [0, 0]).position.tolist() == [2, 1]
    batch = state.sampling(["b", "a"], [3, 2], [0, 1, 2, 0, 1])
    assert batch.position.tolist() == [1, 2, 3, 2, 3]
    assert batch.num_rows == 5


def test_settings_follow_who_joins_and_leaves() -> None:
    state = new_state(2)
    join(state, "a", [1], params=SamplingParams(temperature=2.0))
    assert state.sampling(["a"], [1], [0]).temperature.tolist() == [[2.0]]
    join(state, "b", [1], params=SamplingParams(temperature=3.0))
    assert state.sampling(["b", "a"], [1, 1], [0, 0]).temperature.tolist() == [[3.0], [2.0]]
    state.remove(["a"])
    assert state.sampling(["b"], [1], [0]).temperature.tolist() == [[3.0]]
    join(state, "a", [1], params=SamplingParams(temperature=4.0))
    assert state.sampling(["a", "b"], [1, 1], [0, 0]).temperature.tolist() == [[4.0], [3.0]]


def test_request_that_left_takes_its_row_with_it() -> None:
    state = new_state()
    for index, name in enumerate("abc"):
        join(state, name, range(index + 2), num_prompt_tokens=1, params=SamplingParams(temperature=1.0 + index))
    assert state.sampling(list("abc"), [1, 1, 1], [0, 0, 0]).num_rows == 3
    state.remove(["a"])
    batch = state.sampling(["b", "c"], [1, 1], [0, 0])
    assert (batch.temperature.flatten().tolist(), batch.position.tolist()) == ([2.0, 3.0], [2, 3])


def test_stop_tokens_are_forbidden_until_min_tokens_are_out() -> None:
    state = new_state()
    params = SamplingParams(temperature=0.0, min_tokens=2, max_tokens=9)
    join(state, "a", [1, 2], params=params, forbidden_stop_ids=(7, 9))
    edits = state.sampling(["a"], [3], [0, 1, 2]).edits
    assert edits is not None
    assert edits.forbidden is not None
    assert edits.forbidden.index.tolist() == [7, 9, 57, 59, 107, 109]
    assert edits.forbidden.numbers.tolist() == [2] * 6


# ---- constraints ----


class Script(LogitsConstraint):
    """Allows exactly one sequence of tokens."""

    def __init__(self, tokens: Sequence[int], position: int = 0) -> None:
        self.tokens = list(tokens)
        self.position = position

    def allowed_mask(self, out: torch.Tensor) -> None:
        out.fill_(False)
        out[self.tokens[self.position]] = True

    def fork(self) -> Script:
        return Script(self.tokens, self.position)

    def advance(self, token_id: int) -> bool:
        is_legal = self.position < len(self.tokens) and self.tokens[self.position] == token_id
        self.position += is_legal
        return is_legal

    def rollback(self, num_tokens: int) -> None:
        self.position -= num_tokens

    @property
    def is_terminated(self) -> bool:
        return self.position == len(self.tokens)


def test_constraint_is_forked_and_moved_behind_the_output_there_is() -> None:
    original = Script([5, 6, 7])
    state = new_state()
    join(state, "a", [1, 2, 5, 6], num_prompt_tokens=2, constraint=original)
    cursor = state.constraint("a")
    assert isinstance(cursor, Script)
    assert (original.position, cursor.position) == (0, 2)
    state.remove(["a"])
    assert state.constraint("a") is None
    join(state, "b", [1, 2], constraint=original)
    assert state.constraint("b") is not cursor


def test_output_that_breaks_its_constraint_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="token 6 is not legal"):
        join(new_state(), "a", [1, 6], num_prompt_tokens=1, constraint=Script([5, 6]))
