"""How long a step takes, as a linear function of what it does: the model behind `executor=simulated`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from tokenloom.batch import RowPlan, StepPlan
from tokenloom.settings_base import Settings

__all__ = ["AttentionSpan", "CostBracket", "StepCosts", "StepShape", "step_shape"]

# Not strict: YAML reads 4e-13, without a dot, as text.
_Seconds = Annotated[float, Field(ge=0.0, strict=False)]


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """Layers that look back equally far.

    Attributes:
        window: position i sees j with i - window < j <= i; None is full attention.
        bytes_per_token: keys and values of one token over these layers.
        share: of all layers.
    """

    window: int | None
    bytes_per_token: int
    share: float


@dataclass(frozen=True, slots=True)
class StepShape:
    """What decides how long a step takes.

    Attributes:
        num_prefill_tokens: new tokens of chunks of two and more.
        num_decode_rows: requests that run one token of their own, and drafts under verification: each is one more row
            of the products, of the head and of sampling.
        num_kv_bytes: keys and values read, each request's context once, as far as layers look back.
        num_attention_pairs: (query, key) pairs of the chunks, averaged over layers; what decode rows attend to is in
            num_kv_bytes.
    """

    num_prefill_tokens: int
    num_decode_rows: int
    num_kv_bytes: int
    num_attention_pairs: float


class CostBracket(Settings):
    """What each token or row beyond so many costs, up to the next bracket."""

    above: Annotated[int, Field(ge=1)] = Field(description="So many cost what stands before.")
    each_s: _Seconds = Field(description="Each one beyond them.")


_Brackets = Annotated[tuple[CostBracket, ...], Field(strict=False)]


class StepCosts(Settings):
    """The coefficients, in seconds. A step takes step_s plus each of the others times its count in `StepShape`.

    Tokens need not all cost the same: as long as reading the weights takes longer than computing with them one more is
    nearly free, and products of few rows reach a fraction of the speed of those of many. Brackets make the cost a line
    with corners, as those of a tax do.
    """

    step_s: _Seconds = Field(description="Every step: reading the weights, launching kernels, the Python part.")
    prefill_token_s: _Seconds = Field(description="Each new token of a chunk, up to the first bracket.")
    decode_row_s: _Seconds = Field(
        description="Each request that runs one token of its own, and each draft verified, up to the first bracket."
    )
    kv_byte_s: _Seconds = Field(description="Each byte of keys and values that is read.")
    attention_pair_s: _Seconds = Field(
        default=0.0, description="Each (query, key) pair of a chunk, over all layers and heads."
    )
    prefill_brackets: _Brackets = Field(default=(), description="Of the tokens in a step; empty: all cost the same.")
    decode_brackets: _Brackets = Field(default=(), description="Of the rows in a step; empty: all cost the same.")

    @model_validator(mode="after")
    def _brackets_ascend(self) -> Self:
        for name in ("prefill_brackets", "decode_brackets"):
            above = [bracket.above for bracket in getattr(self, name)]
            if any(later <= earlier for earlier, later in pairwise(above)):
                raise ValueError(f"{name} must ascend, `above` is {above}")
        return self

    def duration_s(self, shape: StepShape) -> float:
        """Seconds that a step of this shape takes."""
        return (
            self.step_s
            + _cost_s(shape.num_prefill_tokens, self.prefill_token_s, self.prefill_brackets)
            + _cost_s(shape.num_decode_rows, self.decode_row_s, self.decode_brackets)
            + self.kv_byte_s * shape.num_kv_bytes
            + self.attention_pair_s * shape.num_attention_pairs
        )


def _cost_s(count: int, each_s: float, brackets: Sequence[CostBracket]) -> float:
    total_s, first = 0.0, 0
    for bracket in brackets:
        if count <= bracket.above:
            break
        total_s += each_s * (bracket.above - first)
        first, each_s = bracket.above, bracket.each_s
    return total_s + each_s * (count - first)


def step_shape(plan: StepPlan, spans: Sequence[AttentionSpan]) -> StepShape:
    """Counts what a step does; `spans` are all layers of the model."""
    num_prefill_tokens, num_decode_rows, num_kv_tokens, num_pairs = 0, 0, 0, 0
    for row in plan.rows:
        start, count = row.num_computed_tokens, row.num_scheduled_tokens
        num_kv_tokens += start + count
        if _is_chunk(row):
            num_prefill_tokens += count
            num_pairs += count * start + count * (count + 1) // 2
        else:
            num_decode_rows += count
    num_kv_bytes, num_attention_pairs = 0, 0.0
    for span in spans:
        tokens, pairs = num_kv_tokens, num_pairs
        if span.window is not None:
            tokens = sum(_num_seen(row, span.window) for row in plan.rows)
            pairs = sum(_num_pairs(row, span.window) for row in plan.rows if _is_chunk(row))
        num_kv_bytes += span.bytes_per_token * tokens
        num_attention_pairs += span.share * pairs
    return StepShape(num_prefill_tokens, num_decode_rows, num_kv_bytes, num_attention_pairs)


def _is_chunk(row: RowPlan) -> bool:
    return row.num_scheduled_tokens - len(row.draft_token_ids) != 1


def _num_seen(row: RowPlan, window: int) -> int:
    """Tokens that a row's queries see within a window, each once."""
    return min(row.num_computed_tokens, window - 1) + row.num_scheduled_tokens


def _num_pairs(row: RowPlan, window: int) -> int:
    """Query number i of a row sees min(computed + i, window) keys."""
    start, count = row.num_computed_tokens, row.num_scheduled_tokens
    num_below = min(count, max(0, window - start))
    return num_below * start + num_below * (num_below + 1) // 2 + (count - num_below) * window
