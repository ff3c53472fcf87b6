"""How long a step takes, as a linear function of what it does: the model behind `executor=simulated`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tokenloom.batch import StepPlan

__all__ = ["StepCosts", "StepShape", "step_shape"]

# Not strict: YAML reads 4e-13, without a dot, as text.
_Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False, strict=False)]


@dataclass(frozen=True, slots=True)
class StepShape:
    """What decides how long a step takes.

    Attributes:
        num_prefill_tokens: new tokens of chunks of two and more, and drafts under verification.
        num_decode_rows: requests that run one token of their own.
        num_kv_bytes: keys and values read, each request's context once.
        num_attention_pairs: (query, key) pairs of the chunks; what decode rows attend to is in num_kv_bytes.
    """

    num_prefill_tokens: int
    num_decode_rows: int
    num_kv_bytes: int
    num_attention_pairs: int

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


def step_shape(plan: StepPlan, kv_bytes_per_token: int) -> StepShape:
    """Counts what a step does.

    Args:
        plan: the step.
        kv_bytes_per_token: keys and values of one token over all layers.
    """
    num_prefill_tokens, num_decode_rows, num_kv_tokens, num_pairs = 0, 0, 0, 0
    for row in plan.rows:
        start, count = row.num_computed_tokens, row.num_scheduled_tokens
        num_kv_tokens += start + count
        if count - len(row.draft_token_ids) == 1:
            num_decode_rows += 1
            num_prefill_tokens += count - 1
        else:
            num_prefill_tokens += count
            num_pairs += count * start + count * (count + 1) // 2
    return StepShape(num_prefill_tokens, num_decode_rows, num_kv_tokens * kv_bytes_per_token, num_pairs)
