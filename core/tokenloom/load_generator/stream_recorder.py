"""Turns what comes over the wire for one request into its `RequestRecord`."""

from __future__ import annotations

from array import array
from typing import Any, final

import msgspec

from tokenloom.load_generator.load_request import LoadRequest, Outcome, RequestRecord
from tokenloom.load_generator.sse import SseParser
from tokenloom.load_generator.stream_chunk import DONE, StreamChunk, Usage, decode_chunk

__all__ = ["REFUSING_STATUSES", "StreamRecorder"]

REFUSING_STATUSES = frozenset({429, 503})
_MESSAGE_CHARACTERS = 300


@final
class StreamRecorder:
    """Records one request. Times are seconds from the start of the load; the caller reads the clock.

    After `take` or `fail` said that the stream is at its end, or `finish`, `record` is complete.

    Attributes:
        num_tokens: tokens seen so far.
        is_over: whether [DONE] or an error came; the rest of the stream need not be read.
    """

    def __init__(self, request: LoadRequest, scheduled_s: float, sent_s: float) -> None:
        self._request = request
        self._scheduled_s, self._sent_s = scheduled_s, sent_s
        self._end_s = sent_s
        self._parser = SseParser()
        self._times, self._tokens = array("d"), array("I")
        self._usage: Usage | None = None
        self._usage_tokens, self._counts_each = 0, True
        self._finish_reason: str | None = None
        self._has_done = False
        self._failure, self._message = "", ""
        self._is_refused = False
        self.num_tokens = 0
        self.is_over = False

    def take(self, data: bytes, now_s: float) -> None:
        """Takes the bytes of one read."""
        self._take_events(self._parser.feed(data), now_s)

    def finish(self, now_s: float) -> None:
        """The stream ended, well or torn apart."""
        if not self.is_over:
            self._take_events(self._parser.finish(), now_s)
        if self._failure or self._is_refused:
            return
        if not self._has_done and self._finish_reason is None:
            self.fail("broken_stream", f"the stream ended after {self.num_tokens} tokens, unfinished", now_s)
        elif not self._times:
            self.fail("empty", f"it ended without any content (finish_reason={self._finish_reason})", now_s)

    def fail(self, kind: str, message: str, now_s: float) -> None:
        """Something went wrong; of several faults the first one counts."""
        if not self._failure and not self._is_refused:
            self._failure, self._message, self._end_s = kind, message[:_MESSAGE_CHARACTERS], now_s
        self.is_over = True

    def refuse(self, status: int, message: str, now_s: float) -> None:
        """The server said that it is overloaded."""
        self.fail(f"http_{status}", message, now_s)
        self._is_refused = True

    def record(self, is_unfinished: bool = False) -> RequestRecord:
        """What was seen; `is_unfinished` if the measurement ended before the request did."""
        outcome = Outcome.FAILED if self._failure else Outcome.COMPLETED
        if self._is_refused:
            outcome = Outcome.REFUSED
        elif is_unfinished:
            outcome = Outcome.UNFINISHED
        usage = self._usage
        counted = None if usage is None else usage.completion_tokens
        details = None if usage is None else usage.prompt_tokens_details
        return RequestRecord(
            number=self._request.number,
            scheduled_s=self._scheduled_s,
            sent_s=self._sent_s,
            end_s=self._end_s,
            outcome=outcome,
            chunk_times_s=self._times,
            chunk_tokens=self._tokens,
            num_output_tokens=self.num_tokens if counted is None else counted,
            has_usage=counted is not None,
            max_tokens=self._request.max_tokens,
            slo_factor=self._request.slo_factor,
            num_prompt_tokens=None if usage is None else usage.prompt_tokens,
            num_cached_tokens=None if details is None else details.cached_tokens,
            finish_reason=self._finish_reason,
            has_done=self._has_done,
            failure=self._failure,
            message=self._message,
        )

    def _take_events(self, events: list[bytes], now_s: float) -> None:
        num_new = 0
        for data in events:
            if self.is_over:
                break
            if data == DONE:
                self._has_done = self.is_over = True
                break
            try:
                num_new += self._take_chunk(decode_chunk(data), now_s)
            except msgspec.MsgspecError as error:
                self.fail("malformed", f"{error}: {data[:100]!r}", now_s)
        if num_new:
            self._times.append(now_s)
            self._tokens.append(num_new)
            self.num_tokens += num_new

    def _take_chunk(self, chunk: StreamChunk, now_s: float) -> int:
        """New tokens that a reader sees; a server that does not count them sends one in each event."""
        if chunk.error is not None or (chunk.choices is None and chunk.usage is None and chunk.message is not None):
            self._take_error(chunk, now_s)
            return 0
        num_new = 0
        for choice in chunk.choices or ():
            if choice.has_content:
                num_new += len(choice.token_ids or ()) or 1
                self._end_s = now_s
            if choice.finish_reason:
                self._finish_reason = choice.finish_reason
                self._end_s = now_s
        counted = None if chunk.usage is None else chunk.usage.completion_tokens
        if counted is not None:
            self._usage = chunk.usage
        if num_new and counted is not None and self._counts_each:
            num_new = max(num_new, counted - self._usage_tokens)
            self._usage_tokens = counted
        elif num_new:
            # A total in the last chunk only tells nothing of how many tokens that chunk has.
            self._counts_each = False
        return num_new

    def _take_error(self, chunk: StreamChunk, now_s: float) -> None:
        error = chunk.error if isinstance(chunk.error, dict) else {"message": chunk.error or chunk.message}
        code, message = error.get("code", chunk.code), _text(error.get("message"))
        if str(code) in map(str, REFUSING_STATUSES) and not self._times:
            self.refuse(int(str(code)), message, now_s)
        else:
            self.fail("server_error", message, now_s)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
