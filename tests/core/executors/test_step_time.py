"""What a step costs, worked out by hand."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tokenloom.batch import RowPlan, StepPlan
from tokenloom.executors.step_time import AttentionSpan, CostBracket, StepCosts, StepShape, step_shape


def row(start: int, count: int, drafts: int = 0) -> RowPlan:
    return RowPlan("r", start, count, tuple(range(drafts)), (), samples=True)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(9, 1)], StepShape(0, 1, 10 * 8, 0)),
        # A chunk of 4 behind 10 tokens: its queries see 11, 12, 13 and 14 keys.
        ([row(10, 4)], StepShape(4, 0, 14 * 8, 11 + 12 + 13 + 14)),
        ([row(0, 3)], StepShape(3, 0, 3 * 8, 6)),
        # One token of its own and two drafts: three rows that are sampled.
        ([row(20, 3, drafts=2)], StepShape(0, 3, 23 * 8, 0)),
        ([row(9, 1), row(10, 4), row(20, 3, drafts=2)], StepShape(4, 4, (10 + 14 + 23) * 8, 50)),
    ],
)
def test_shape_of_a_step(rows: list[RowPlan], expected: StepShape) -> None:
    assert step_shape(StepPlan(0, tuple(rows)), [AttentionSpan(None, 8, 1.0)]) == expected


@pytest.mark.parametrize("window", [1, 2, 5, 12, 100])
def test_shape_of_windows_is_that_of_a_count_by_hand(window: int) -> None:
    """A quarter of the layers sees everything, the others as far as their window goes."""
    rows = [row(9, 1), row(10, 4), row(0, 3), row(3, 17), row(20, 3, drafts=2)]
    shape = step_shape(StepPlan(0, tuple(rows)), [AttentionSpan(None, 2, 0.25), AttentionSpan(window, 6, 0.75)])
    num_bytes, num_pairs = 0, 0.0
    for one in rows:
        first, end = one.num_computed_tokens, one.num_computed_tokens + one.num_scheduled_tokens
        seen = [range(max(0, query - window + 1), query + 1) for query in range(first, end)]
        num_bytes += 2 * end + 6 * len({key for keys in seen for key in keys})
        if one.num_scheduled_tokens > 1 and not one.draft_token_ids:
            num_pairs += 0.25 * sum(range(first + 1, end + 1)) + 0.75 * sum(map(len, seen))
    assert shape.num_kv_bytes == num_bytes
    assert shape.num_attention_pairs == pytest.approx(num_pairs)


def test_duration_is_linear_in_the_shape() -> None:
    costs = StepCosts(step_s=1.0, prefill_token_s=10.0, decode_row_s=100.0, kv_byte_s=1000.0, attention_pair_s=0.5)
    shape = StepShape(2, 3, 4, 6)
    assert costs.duration_s(shape) == 1.0 + 20.0 + 300.0 + 4000.0 + 3.0


@pytest.mark.parametrize(
    ("count", "seconds"), [(0, 0.0), (1, 100.0), (4, 400.0), (5, 407.0), (10, 442.0), (11, 442.5), (30, 452.0)]
)
def test_tokens_and_rows_beyond_a_bracket_cost_what_it_says(count: int, seconds: float) -> None:
    brackets = (CostBracket(above=4, each_s=7.0), CostBracket(above=10, each_s=0.5))
    rows = StepCosts(step_s=0, prefill_token_s=0, decode_row_s=100, kv_byte_s=0, decode_brackets=brackets)
    assert rows.duration_s(StepShape(9, count, 0, 0)) == seconds
    tokens = StepCosts(step_s=0, prefill_token_s=100, decode_row_s=0, kv_byte_s=0, prefill_brackets=brackets)
    assert tokens.duration_s(StepShape(count, 9, 0, 0)) == seconds


@pytest.mark.parametrize("name", ["prefill_brackets", "decode_brackets"])
@pytest.mark.parametrize("above", [(4, 4), (8, 4), (0, 4)])
def test_brackets_ascend_from_one(name: str, above: tuple[int, int]) -> None:
    brackets = [{"above": count, "each_s": 1.0} for count in above]
    free = {"step_s": 0.0, "prefill_token_s": 0.0, "decode_row_s": 0.0, "kv_byte_s": 0.0}
    with pytest.raises(ValidationError, match="above"):
        StepCosts.model_validate({**free, name: brackets})


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_costs_are_finite_and_not_negative(value: float) -> None:
    with pytest.raises(ValidationError):
        StepCosts(step_s=value, prefill_token_s=0.0, decode_row_s=0.0, kv_byte_s=0.0)
