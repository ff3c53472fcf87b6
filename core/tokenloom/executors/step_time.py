"""How long a step takes, as a linear function of what it does: the model behind `executor=simulated`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tokenloom.batch import RowPlan, StepPlan

__all__ = ["AttentionSpan", "StepCosts", "StepShape", "step_shape"]

# Not strict: YAML reads 4e-13, without a dot, as text.
_Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False, strict=False)]


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
        num_prefill_tokens: new tokens of chunks of two and more, and drafts under verification.
        num_decode_rows: requests that run one token of their own.
        num_kv_bytes: keys and values read, each request's context once, as far as layers look back.
        num_attention_pairs: (query, key) pairs of the chunks, averaged over layers; what decode rows attend to is in
            num_kv_bytes.
    """

    num_prefill_tokens: int
    num_decode_rows: int
    num_kv_bytes: int
    num_attention_pairs: float

    def as_row(self) -> tuple[float, float, float, float, float]:
        """One line of the linear system, in the order of the fields of `StepCosts`."""
        return (
            1.0,
            float(self.num_prefill_tokens),
            float(self.num_decode_rows),
            float(self.num_kv_bytes),
            float(self.num_attention_pairs),
        )


class StepCosts(BaseModel):
    """The coefficients, in seconds. A step takes step_s plus each of the others times its count in `StepShape`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    step_s: _Seconds = Field(description="Every step: reading the weights, launching kernels, the Python part.")
    prefill_token_s: _Seconds = Field(description="Each new token of a chunk, and each draft.")
    decode_row_s: _Seconds = Field(description="Each request that runs one token of its own.")
    kv_byte_s: _Seconds = Field(description="Each byte of keys and values that is read.")
    attention_pair_s: _Seconds = Field(
        default=0.0, description="Each (query, key) pair of a chunk, over all layers and heads."
    )

    def duration_s(self, shape: StepShape) -> float:
        """Seconds that a step of this shape takes."""
        return (
            self.step_s
            + self.prefill_token_s * shape.num_prefill_tokens
            + self.decode_row_s * shape.num_decode_rows
            + self.kv_byte_s * shape.num_kv_bytes
            + self.attention_pair_s * shape.num_attention_pairs
        )


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
            num_decode_rows += 1
            num_prefill_tokens += count - 1
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
