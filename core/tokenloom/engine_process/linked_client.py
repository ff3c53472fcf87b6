"""What a front end holds of an engine, wherever that runs: sorts what comes by submission, and survives its death."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, final

from tokenloom.clock import Clock, MonotonicClock
from tokenloom.engine_process.link import FrontEndLink
from tokenloom.engine_process.linked_stream import LinkedStream, choice_ids
from tokenloom.engine_process.messages import (
    Abort,
    Call,
    EngineInfo,
    Failed,
    FromEngine,
    Hello,
    Outputs,
    Refused,
    Reply,
    Submit,
    Truncate,
)
from tokenloom.errors import EngineDeadError, RequestError

__all__ = ["LinkedClient"]

_NOT_THERE = "the engine is not there: it is loading, or being restarted; try again in a moment"


@final
class LinkedClient:
    """Holds a link to the engine while there is one. Lives in one event loop.

    Whoever watches the engine attaches and detaches links.
    """

    def __init__(self, *, on_ready: Callable[[], None] | None = None, clock: Clock | None = None) -> None:
        """`on_ready` is called each time that an engine can be used."""
        self._on_ready = on_ready
        self._clock = MonotonicClock() if clock is None else clock
        self._link: FrontEndLink | None = None
        self._info: EngineInfo | None = None
        self._is_ready = False
        self._choices: dict[str, LinkedStream] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._next_call = 0
        self._is_stopped = False

    @property
    def info(self) -> EngineInfo:
        """What the engine said of itself. Raises EngineDeadError before it was ready for the first time."""
        if self._info is None:
            raise EngineDeadError(_NOT_THERE)
        return self._info

    @property
    def is_ready(self) -> bool:
        """Whether submissions can be sent now."""
        return self._is_ready

    @property
    def num_choices(self) -> int:
        """Choices that have not ended."""
        return len(self._choices)

    def attach(self, link: FrontEndLink) -> None:
        """Connects to an engine, instead of the one before it if that was not detached."""
        self.detach("another engine took its place")
        self._link = link
        link.start(self._take)
        link.send(Hello())

    def take_info(self, info: EngineInfo) -> None:
        """What the engine says of itself; from then on it can be used."""
        is_news = not self._is_ready
        self._info, self._is_ready = info, True
        if is_news and self._on_ready is not None:
            self._on_ready()

    def detach(self, reason: str) -> None:
        """Ends the connection to an engine that is gone: streams and calls end with EngineDeadError. Idempotent."""
        if self._link is None:
            return
        self._link.close()
        self._link, self._is_ready = None, False
        for stream in dict.fromkeys(self._choices.values()):
            stream.fail(EngineDeadError(reason))
        self._choices.clear()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(EngineDeadError(reason))

    def submit(self, submission: Submit) -> LinkedStream:
        """Sends a submission; does not wait. Raises EngineDeadError when the engine is not there."""
        self._require_ready()
        ids = choice_ids(submission)
        taken = next((request_id for request_id in ids if request_id in self._choices), None)
        if taken is not None:
            raise RequestError(f"request_id {taken!r} is in use; choose another one", "request_id")
        stream = LinkedStream(submission, self._truncate, self._abandon)
        if self._is_stopped:
            stream.stop(self._clock.now())
            return stream
        # A number too large for the wire is refused here, before anything is known of the submission.
        self._send(submission)
        self._choices.update(dict.fromkeys(ids, stream))
        return stream

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Asks the engine something, see `EngineLoop`; may take as long as a step.

        Raises:
            EngineDeadError: it is not there, or dies meanwhile.
            TokenloomError: the operation failed, with the engine's message; RequestError: it was asked for wrongly.
        """
        self._require_ready()
        number = self._next_call
        self._next_call += 1
        reply = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(Call(number, operation, arguments))
            return await reply
        finally:
            self._calls.pop(number, None)

    def stop_all(self) -> None:
        """Aborts everything that runs or is still to come; each stream ends with finish_reason "abort"."""
        self._is_stopped = True
        for stream in dict.fromkeys(self._choices.values()):
            self._send(Abort([stream.request_id]))
            stream.stop(self._clock.now())
        self._choices.clear()

    async def close(self) -> None:
        """Aborts this front end's requests and ends the connection; idempotent."""
        if self._link is not None:
            for stream in dict.fromkeys(self._choices.values()):
                self._send(Abort([stream.request_id]))
            self.detach("the connection to the engine was closed")

    def _require_ready(self) -> None:
        if not self._is_ready:
            raise EngineDeadError(_NOT_THERE)

    def _send(self, message: Submit | Abort | Truncate | Call) -> None:
        if self._link is not None:
            self._link.send(message)

    def _truncate(self, request_id: str, num_output_tokens: int, stop_reason: str) -> None:
        self._choices.pop(request_id, None)
        self._send(Truncate(request_id, num_output_tokens, stop_reason))

    def _abandon(self, request_id: str, choices: tuple[str, ...]) -> None:
        for choice in choices:
            del self._choices[choice]
        self._send(Abort([request_id]))

    def _take(self, message: FromEngine) -> None:
        match message:
            case Outputs():
                for output in message.outputs:
                    stream = self._choices.get(output.request_id)
                    if stream is not None:
                        stream.put(output)
                        if output.finish_reason is not None:
                            self._choices.pop(output.request_id, None)
            case Refused():
                self._refuse(message)
            case Reply():
                self._answer(message)
            case EngineInfo():
                self.take_info(message)
            case Failed():
                self.detach(message.message)

    def _refuse(self, refused: Refused) -> None:
        stream = self._choices.get(refused.request_id) or self._choices.get(f"{refused.request_id}-0")
        if stream is not None:
            for choice in stream.live_choices:
                del self._choices[choice]
            stream.fail(refused.fault.error())

    def _answer(self, reply: Reply) -> None:
        call = self._calls.get(reply.call_id)
        if call is None or call.done():
            return
        if reply.fault is None:
            call.set_result(reply.result)
        else:
            call.set_exception(reply.fault.error())
