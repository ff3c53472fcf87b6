"""One HTTP request at work in the engine: its prompts are submitted together, and its choices' news come out merged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import final

from tokenloom.engine_output import EngineOutput, RequestTimes
from tokenloom.engine_process.linked_client import LinkedClient
from tokenloom.engine_process.linked_stream import LinkedStream
from tokenloom.engine_process.messages import Submit
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.request import FinishReason, Request
from tokenloom.request_factory import RequestTraits
from tokenloom.sampling_params import SamplingParams
from tokenloom.server.answer_parts import Usage, usage_of
from tokenloom.server.places import HeldPlaces
from tokenloom.text.bad_words import encode_bad_words
from tokenloom.text.output_processor import ChoiceDelta, OutputProcessor
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["ChoiceState", "Generation", "Job", "News"]

News = list[tuple[int, ChoiceDelta]]
"""What is new of choices, by their index over all prompts: prompt number * n + number of the choice."""


@dataclass(frozen=True, slots=True)
class Job:
    """What the engine is asked to do.

    Attributes:
        answer_id: of the answer; what the engine calls the request begins with it.
        prompts: token ids of each prompt.
        params: for all of them.
        traits: what policies may know.
        grammar: structured output, or None.
        drops_output: nothing but the prompts' logprobs is wanted; the one token that the engine must generate is
            dropped.
        arrival_s: when the request came, on the machine's clock.
    """

    answer_id: str
    prompts: Sequence[list[int]]
    params: SamplingParams
    traits: RequestTraits
    grammar: GrammarSpec | None = None
    drops_output: bool = False
    arrival_s: float | None = None


@dataclass(slots=True)
class ChoiceState:
    """How far a choice is.

    Attributes:
        num_tokens: output tokens so far.
        num_cached_tokens: tokens of its prompt that came from the prefix cache.
        times: as the engine told last.
        last_token_s: when its last tokens landed.
        finish_reason: why it ended; None while it runs.
    """

    num_tokens: int = 0
    num_cached_tokens: int = 0
    times: RequestTimes | None = None
    last_token_s: float | None = None
    finish_reason: FinishReason | None = None


@final
class Generation:
    """Submits a job; iterate over `news` from one task. `close` may be called from anywhere, at any time."""

    def __init__(self, client: LinkedClient, tokenizer: Tokenizer, job: Job, places: HeldPlaces) -> None:
        """The places are given back as choices end, and wholly by `close`.

        Raises:
            RequestError: a bad word has no tokens.
            EngineDeadError: there is no engine.
        """
        self.job = job
        self.choices = [ChoiceState() for _ in range(len(job.prompts) * job.params.n)]
        self._places = places
        self._parts: list[_Part] = []
        self._is_closed = False
        try:
            self._submit(client, tokenizer)
        except BaseException:
            self.close()
            raise

    def usage(self) -> Usage:
        """Tokens so far. Each prompt counts once; what of it was cached is told by its first choice."""
        num_prompt_tokens = sum(map(len, self.job.prompts))
        num_output_tokens = sum(choice.num_tokens for choice in self.choices)
        num_cached_tokens = sum(choice.num_cached_tokens for choice in self.choices[:: self.job.params.n])
        return usage_of(num_prompt_tokens, num_output_tokens, num_cached_tokens)

    async def news(self) -> AsyncGenerator[News, None]:
        """What is new since the last time, until every choice has ended or `close` was called.

        Raises:
            RequestError, OverloadedError, EngineDeadError: see `LinkedStream`.
        """
        if len(self._parts) == 1:
            part = self._parts[0]
            async for outputs in part.stream:
                news = part.process(outputs)
                if news:
                    self._note(news)
                    yield news
            return
        async with aclosing(self._merged()) as merged:
            async for news in merged:
                self._note(news)
                yield news

    def close(self) -> None:
        """Aborts what has not ended and gives all places back. Idempotent, does not wait."""
        if self._is_closed:
            return
        self._is_closed = True
        for part in self._parts:
            part.stream.close()
        self._places.release()

    def _submit(self, client: LinkedClient, tokenizer: Tokenizer) -> None:
        job = self.job
        bad_words = [list(word) for word in encode_bad_words(tokenizer, job.params.bad_words)]
        for number, prompt in enumerate(job.prompts):
            request_id = job.answer_id if len(job.prompts) == 1 else f"{job.answer_id}-prompt{number}"
            submission = Submit(request_id, prompt, job.params, job.traits, job.grammar, bad_words, job.arrival_s)
            stream = client.submit(submission)
            self._parts.append(_Part(stream, tokenizer, submission, number * job.params.n, job.drops_output))

    async def _merged(self) -> AsyncGenerator[News, None]:
        """The news of several submissions, as they come."""
        queue: asyncio.Queue[News | Exception | None] = asyncio.Queue()

        async def feed(part: _Part) -> None:
            try:
                async for outputs in part.stream:
                    queue.put_nowait(part.process(outputs))
            except Exception as error:  # noqa: BLE001  the reader raises it
                queue.put_nowait(error)
            else:
                queue.put_nowait(None)

        feeders = [asyncio.create_task(feed(part)) for part in self._parts]
        num_open = len(feeders)
        try:
            while num_open:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                num_open -= item is None
                if item:
                    yield item
        finally:
            for feeder in feeders:
                feeder.cancel()
            # Where one choice's failure ends the request, what had come of the others is still told of it.
            while not queue.empty():
                item = queue.get_nowait()
                if isinstance(item, list):
                    self._note(item)

    def _note(self, news: News) -> None:
        for index, delta in news:
            choice, output = self.choices[index], delta.output
            choice.times = output.times
            choice.num_cached_tokens = output.num_cached_tokens
            if output.token_ids:
                choice.num_tokens += len(output.token_ids)
                choice.last_token_s = output.landed_s
            if output.finish_reason is not None:
                choice.finish_reason = output.finish_reason
                self._places.release(1)


@final
class _Part:
    """One prompt's submission: its stream, and the text of its choices."""

    def __init__(
        self, stream: LinkedStream, tokenizer: Tokenizer, submission: Submit, first_index: int, drops_output: bool
    ) -> None:
        self.stream = stream
        self._drops_output = drops_output
        self._processor = OutputProcessor(tokenizer, self._truncate)
        params, request_id = submission.params, submission.request_id
        ids = [request_id] if params.n == 1 else [f"{request_id}-{number}" for number in range(params.n)]
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self._live = {choice_id: first_index + number for number, choice_id in enumerate(ids)}
        for choice_id in ids:
            self._processor.add(Request(choice_id, submission.prompt_token_ids, params, seed=0, max_total_tokens=0))

    def process(self, outputs: Sequence[EngineOutput]) -> News:
        """Outputs as text. What comes behind a stop string is dropped."""
        news: News = []
        for output in outputs:
            index = self._live.get(output.request_id)
            if index is None:
                continue
            (delta,) = self._processor.process((output,))
            if self._drops_output:
                delta = _without_output(delta)
            reason = delta.output.stop_reason
            if isinstance(reason, int) and reason not in self._stop_token_ids:
                # Clients know the model's own end by null; a value means that something of theirs ended the text.
                delta = replace(delta, output=replace(delta.output, stop_reason=None))
            if delta.output.finish_reason is not None:
                del self._live[output.request_id]
            news.append((index, delta))
        return news

    def _truncate(self, request_id: str, num_output_tokens: int, stop_reason: str) -> None:
        self.stream.truncate(request_id, num_output_tokens, stop_reason)


def _without_output(delta: ChoiceDelta) -> ChoiceDelta:
    output = delta.output
    reason = output.finish_reason
    if reason is FinishReason.STOP:
        reason = FinishReason.LENGTH
    return ChoiceDelta("", replace(output, token_ids=[], logprobs=(), finish_reason=reason, stop_reason=None))
