"""Makes records of requests for tests of what is computed from them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from tokenloom.load_generator.load_request import Outcome, RequestRecord

__all__ = ["made"]


def made(number: int, scheduled_s: float, chunk_times_s: Sequence[float], **fields: Any) -> RequestRecord:
    """A request that completed with its last chunk, a token in each, unless told otherwise."""
    tokens = array("I", fields.pop("chunk_tokens", [1] * len(chunk_times_s)))
    defaults: dict[str, Any] = {
        "sent_s": scheduled_s,
        "end_s": chunk_times_s[-1] if chunk_times_s else scheduled_s,
        "outcome": Outcome.COMPLETED,
        "num_output_tokens": sum(tokens),
        "has_usage": True,
        "max_tokens": sum(tokens),
    }
    times = array("d", chunk_times_s)
    return RequestRecord(
        number=number, scheduled_s=scheduled_s, chunk_times_s=times, chunk_tokens=tokens, **{**defaults, **fields}
    )
