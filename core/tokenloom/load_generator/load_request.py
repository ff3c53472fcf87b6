"""One request to send, and what became of it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["LoadRequest", "Outcome", "RequestRecord"]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A request that is ready to be sent.

    Attributes:
        number: its place in the workload, from 0.
        arrival_s: when it is due, seconds from the start of the load; of no meaning in a closed loop.
        body: the JSON of the HTTP request.
        max_tokens: output tokens that it asks for.
        slo_factor: its targets are those of the run times this.
    """

    number: int
    arrival_s: float
    body: bytes
    max_tokens: int
    slo_factor: float = 1.0


class Outcome(StrEnum):
    """How a request ended. REFUSED: the server said that it is overloaded. UNFINISHED: the measurement was ended."""

    COMPLETED = "completed"
    REFUSED = "refused"
    FAILED = "failed"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What was seen of one request. All times are seconds from the start of the load.

    Attributes:
        number: of the `LoadRequest`.
        scheduled_s: when it was due; in a closed loop, when it was sent.
        sent_s: when it was sent.
        end_s: when its last content, or its finish reason, came; of others than completed ones, when that was known.
        outcome: how it ended.
        chunk_times_s: when content came. What came in one read is one chunk.
        chunk_tokens: tokens of each chunk: as the server counted them, if it counts in every chunk, else its events.
        num_output_tokens: output tokens, from the usage where there is one, else the sum of `chunk_tokens`.
        has_usage: whether the server sent its token counts.
        max_tokens, slo_factor: of the `LoadRequest`.
        num_prompt_tokens, num_cached_tokens: as the usage tells, else None.
        finish_reason: of the last choice that had one.
        has_done: whether the stream ended with [DONE].
        failure: kind of failure, "" if there was none: http_<status>, connection, timeout, broken_stream, empty,
            server_error (an error within the stream), malformed, not_a_stream.
        message: its details.
    """

    number: int
    scheduled_s: float
    sent_s: float
    end_s: float
    outcome: Outcome
    chunk_times_s: array[float]
    chunk_tokens: array[int]
    num_output_tokens: int
    has_usage: bool
    max_tokens: int
    slo_factor: float = 1.0
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    finish_reason: str | None = None
    has_done: bool = False
    failure: str = ""
    message: str = ""

    @property
    def is_completed(self) -> bool:
        """Whether it ended well."""
        return self.outcome is Outcome.COMPLETED

    @property
    def ttft_s(self) -> float | None:
        """From when it was due to its first content."""
        return self.chunk_times_s[0] - self.scheduled_s if self.chunk_times_s else None

    @property
    def e2e_s(self) -> float:
        """From when it was due to its end."""
        return self.end_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None of a single token."""
        ttft_s, num_later = self.ttft_s, self.num_output_tokens - 1
        return None if ttft_s is None or num_later < 1 else (self.e2e_s - ttft_s) / num_later
