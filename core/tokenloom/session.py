"""Requests under way in one engine: steps it, and hands each choice its news. Underneath `LLM`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from tokenloom.batch import TokenLogprobs
from tokenloom.engine import Engine
from tokenloom.interrupts import deferred_interrupt
from tokenloom.request import Request
from tokenloom.results import CompletionOutput, RequestMetrics, StreamDelta
from tokenloom.text.output_processor import ChoiceDelta, OutputProcessor
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["Choice", "Session", "TextStream"]


@dataclass(slots=True)
class Choice:
    """What has come of one request so far."""

    request: Request
    deltas: list[ChoiceDelta] = field(default_factory=list)
    unread: deque[ChoiceDelta] = field(default_factory=deque)
    is_finished: bool = False

    def add(self, delta: ChoiceDelta) -> None:
        """Takes the news of one step."""
        self.deltas.append(delta)
        self.unread.append(delta)
        self.is_finished = delta.output.finish_reason is not None

    def completion(self) -> CompletionOutput:
        """The whole choice; call it when it has finished."""
        last = self.deltas[-1].output
        wants_logprobs = self.request.params.logprobs is not None
        return CompletionOutput(
            index=self.request.choice_index,
            text="".join(delta.text for delta in self.deltas),
            token_ids=[token_id for delta in self.deltas for token_id in delta.output.token_ids],
            finish_reason=None if last.finish_reason is None else last.finish_reason.value,
            stop_reason=last.stop_reason,
            logprobs=[entry for delta in self.deltas for entry in delta.output.logprobs] if wants_logprobs else None,
            error=last.error,
            metrics=self.metrics(),
        )

    def prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """Of the whole prompt, once its first tokens are there; None for choices that do not compute them."""
        found = [delta.output.prompt_logprobs for delta in self.deltas if delta.output.prompt_logprobs is not None]
        return list(found[0]) if found else None

    def metrics(self) -> RequestMetrics:
        """Times so far."""
        outputs = [delta.output for delta in self.deltas]
        times = outputs[-1].times
        chunks = [(o.landed_s - times.arrival_s, len(o.token_ids)) for o in outputs if o.token_ids]
        ttft_s = None if times.first_token_s is None else times.first_token_s - times.arrival_s
        e2e_s = None if times.finish_s is None else times.finish_s - times.arrival_s
        return RequestMetrics(
            ttft_s=ttft_s,
            tpot_s=times.tpot_s(sum(count for _, count in chunks)),
            e2e_s=e2e_s,
            queue_s=None if times.first_scheduled_s is None else times.first_scheduled_s - times.arrival_s,
            token_times_s=tuple(time_s for time_s, _ in chunks),
            tokens_per_chunk=tuple(count for _, count in chunks),
        )


@final
class Session:
    """Live requests of one engine, called from one thread. Several callers may wait at once; any of them may pump."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._processor = OutputProcessor(tokenizer, engine.truncate)
        self._choices: dict[str, Choice] = {}
        self._abandoned: deque[Request] = deque()

    def start(self, requests: Sequence[Request]) -> list[Choice]:
        """Adds all requests, or none and raises RequestError or OverloadedError."""
        self._drop_abandoned()
        self._engine.add_requests(requests)
        try:
            for request in requests:
                self._processor.add(request)
                self._choices[request.request_id] = Choice(request)
        except BaseException:
            self.drop(requests)
            raise
        return [self._choices[request.request_id] for request in requests]

    def pump(self) -> None:
        """Runs one step and hands its news out. Ctrl-C takes effect after it."""
        self._drop_abandoned()
        with deferred_interrupt():
            for delta in self._processor.process(self._engine.step()):
                self._choices[delta.output.request_id].add(delta)

    def drop(self, requests: Sequence[Request]) -> None:
        """Forgets requests, aborting those that have not ended."""
        for request in requests:
            self._engine.abort(request.request_id)
            self._processor.forget(request.request_id)
            self._choices.pop(request.request_id, None)

    def abandon(self, requests: Sequence[Request]) -> None:
        """Drops requests at the next call: for the garbage collector, which may run in the middle of a step."""
        self._abandoned.extend(requests)

    def _drop_abandoned(self) -> None:
        while self._abandoned:
            self.drop([self._abandoned.popleft()])


@final
class TextStream(Iterator[StreamDelta]):
    """The pieces of one prompt's choices, as they come. Closing it, or leaving its `with` block, aborts the request.

    Attributes:
        num_tokens: output tokens so far, over all choices.
    """

    def __init__(self, session: Session, requests: Sequence[Request]) -> None:
        self.num_tokens = 0
        self._session = session
        self._requests = list(requests)
        self._is_closed = True
        self._choices = session.start(requests)
        self._is_closed = False

    @property
    def metrics(self) -> RequestMetrics | None:
        """Times of the first choice; None before its first piece."""
        return self._choices[0].metrics() if self._choices[0].deltas else None

    @property
    def wall_s(self) -> float | None:
        """From arrival to the end of the last choice, seconds; None before."""
        ends = [request.finish_time_s for request in self._requests if request.finish_time_s is not None]
        return max(ends) - self._requests[0].arrival_time_s if len(ends) == len(self._requests) else None

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens of the first choice that came from the prefix cache."""
        return self._requests[0].num_cached_tokens

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """As in `RequestOutput`; there from the first choice's first piece on."""
        return self._choices[0].prompt_logprobs()

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> StreamDelta:
        while not self._is_closed:
            for choice in self._choices:
                if choice.unread:
                    return self._piece(choice)
            if all(choice.is_finished for choice in self._choices):
                self.close()
            else:
                self._session.pump()
        raise StopIteration

    def close(self) -> None:
        """Ends the stream; aborts what has not finished. Idempotent."""
        self._is_closed = True
        self._session.drop(self._requests)

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # An abandoned stream must not go on taking memory and steps.
        if not self._is_closed:
            self._session.abandon(self._requests)

    def _piece(self, choice: Choice) -> StreamDelta:
        delta = choice.unread.popleft()
        output = delta.output
        self.num_tokens += len(output.token_ids)
        return StreamDelta(
            index=choice.request.choice_index,
            text=delta.text,
            token_ids=output.token_ids,
            logprobs=list(output.logprobs) if choice.request.params.logprobs is not None else None,
            finish_reason=None if output.finish_reason is None else output.finish_reason.value,
            stop_reason=output.stop_reason,
            error=output.error,
        )
