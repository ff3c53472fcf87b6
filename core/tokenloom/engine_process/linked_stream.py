"""The outputs of one submission as they come over a link, merged where the reader is slower than the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import final

from tokenloom.engine_output import EngineOutput, RequestTimes
from tokenloom.engine_process.messages import Submit
from tokenloom.errors import TokenloomError
from tokenloom.request import FinishReason

__all__ = ["LinkedStream", "choice_ids"]


def choice_ids(submission: Submit) -> list[str]:
    """The request ids of a submission's choices, in order of their index."""
    if submission.params.n == 1:
        return [submission.request_id]
    return [f"{submission.request_id}-{index}" for index in range(submission.params.n)]


@final
class LinkedStream:
    """The outputs of one submission, all its choices interleaved, as they land. Used from one task.

    Iterating yields what has landed since the last time (at least one output), until every choice has ended. A reader
    that is slower than the engine gets several steps at once: at most one output is held for each choice, and what
    lands before that was read is merged into it, so that what waits is bounded by the request's own tokens.

    Raises, while iterating:
        RequestError: the engine refused the submission: it can never run as asked.
        OverloadedError: the engine refused it for now.
        EngineDeadError: the engine died; nothing more comes.
    """

    def __init__(
        self,
        submission: Submit,
        truncate: Callable[[str, int, str], None],
        abandon: Callable[[str, tuple[str, ...]], None],
    ) -> None:
        """
        Args:
            submission: what was sent.
            truncate: told that a choice ends at a stop string: (its request id, tokens to keep, stop string).
            abandon: told that the reader is gone: (request id of the submission, those of its choices that run).
        """
        self.request_id = submission.request_id
        self._arrival_s = 0.0 if submission.arrival_s is None else submission.arrival_s
        self._truncate = truncate
        self._abandon = abandon
        self._pending: dict[str, EngineOutput] = {}
        self._last: dict[str, EngineOutput | None] = dict.fromkeys(choice_ids(submission))
        self._error: TokenloomError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> LinkedStream:
        return self

    async def __anext__(self) -> list[EngineOutput]:
        if not self._pending and self._error is None and self._last:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._pending:
            outputs = list(self._pending.values())
            self._pending.clear()
            return outputs
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    @property
    def live_choices(self) -> tuple[str, ...]:
        """Request ids of the choices that have not ended."""
        return tuple(self._last)

    def truncate(self, request_id: str, num_output_tokens: int, stop_reason: str) -> None:
        """Ends one choice at a stop string; nothing more comes of it. Harmless once it has ended."""
        self._pending.pop(request_id, None)
        if request_id in self._last:
            del self._last[request_id]
            self._truncate(request_id, num_output_tokens, stop_reason)

    def close(self) -> None:
        """Aborts every choice that has not ended; idempotent, does not wait."""
        live = self.live_choices
        self._last.clear()
        self._pending.clear()
        self._error = None
        if live:
            self._abandon(self.request_id, live)
        self._wake()

    def put(self, output: EngineOutput) -> None:
        """Takes what landed for one choice."""
        request_id = output.request_id
        if request_id not in self._last:
            return
        waiting = self._pending.get(request_id)
        self._pending[request_id] = output if waiting is None else _merged(waiting, output)
        if output.finish_reason is None:
            self._last[request_id] = output
        else:
            del self._last[request_id]
        self._wake()

    def fail(self, error: TokenloomError) -> None:
        """Ends all choices with an error, behind what has landed already."""
        if self._last:
            self._error = error
            self._last.clear()
            self._wake()

    def stop(self, now_s: float) -> None:
        """Aborts all choices and ends the stream as it should: each gets a last output that says so."""
        for request_id, last in list(self._last.items()):
            times = RequestTimes(self._arrival_s) if last is None else last.times
            num_cached = 0 if last is None else last.num_cached_tokens
            times = replace(times, finish_s=now_s)
            self.put(EngineOutput(request_id, [], (), FinishReason.ABORT, None, num_cached, None, now_s, times))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _merged(first: EngineOutput, later: EngineOutput) -> EngineOutput:
    """Two outputs of one choice as one."""
    return replace(
        later,
        token_ids=first.token_ids + later.token_ids,
        logprobs=(*first.logprobs, *later.logprobs),
        prompt_logprobs=later.prompt_logprobs if first.prompt_logprobs is None else first.prompt_logprobs,
    )
