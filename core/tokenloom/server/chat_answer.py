"""Answers of /v1/chat/completions, streamed and whole, from the same deltas. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import msgspec
from msgspec import UNSET, UnsetType

from tokenloom.batch import TokenLogprobs
from tokenloom.server.answer_parts import AnswerHead, Usage, UsageField, event, finish_reason, json_bytes, optional
from tokenloom.server.logprob_shapes import ChatLogprobs, LogprobWriter, PromptLogprob
from tokenloom.server.tools.interface import (
    ContentDelta,
    ReasoningDelta,
    ReplyDelta,
    ToolCallArguments,
    ToolCallStart,
)
from tokenloom.server.tools.reply import ReplyParser, assemble
from tokenloom.text.output_processor import ChoiceDelta

__all__ = ["ChatAnswer", "ChatOptions"]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What an answer holds.

    Attributes:
        logprobs: those of the reply's tokens.
        prompt_logprobs: those of the prompt.
        token_ids: token ids are wanted.
        reasoning: what the model thought is wanted.
        parallel_tool_calls: calls behind the first one are wanted.
        usage_chunk, usage_always: of `stream_options`.
    """

    logprobs: bool = False
    prompt_logprobs: bool = False
    token_ids: bool = False
    reasoning: bool = True
    parallel_tool_calls: bool = True
    usage_chunk: bool = False
    usage_always: bool = False


class FunctionPart(msgspec.Struct):
    """A call's function, or a fragment of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallPart(msgspec.Struct):
    """A call, or more of one; `id`, `type` and the name come once."""

    index: int | UnsetType
    function: FunctionPart
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class Delta(msgspec.Struct):
    """More of a reply."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallPart] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """A choice's part of a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Chunk(msgspec.Struct):
    """A chunk of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageField = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    object: str = "chat.completion.chunk"


class Message(msgspec.Struct):
    """A whole reply; `content` is null where there are only calls."""

    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallPart] | UnsetType = UNSET
    refusal: None = None
    role: str = "assistant"


class WholeChoice(msgspec.Struct):
    """A choice of a whole answer."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: list[WholeChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET
    object: str = "chat.completion"


@dataclass(slots=True)
class _Choice:
    parser: ReplyParser | None
    has_called: bool = False
    last_arguments: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    deltas: list[ReplyDelta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@final
class ChatAnswer:
    """Turns the news of one request into events, or collects them into one answer."""

    def __init__(
        self,
        head: AnswerHead,
        options: ChatOptions,
        prompt_token_ids: list[int],
        writer: LogprobWriter,
        parsers: Sequence[ReplyParser | None],
    ) -> None:
        """`parsers` has one for each choice; None where the text is the reply."""
        self._head = head
        self._options = options
        self._prompt_token_ids = prompt_token_ids
        self._writer = writer
        self._choices = [_Choice(parser) for parser in parsers]
        self._prompt_logprobs: Sequence[TokenLogprobs | None] | None = None

    def begin(self) -> bytes:
        """Events before the first news: each choice's role."""
        shown: UsageField = None if self._options.usage_chunk else UNSET
        events = []
        for index in range(len(self._choices)):
            chunk = self._chunk([ChunkChoice(index, Delta(role="assistant", content=""))], shown)
            chunk.prompt_token_ids = optional(self._options.token_ids and index == 0, self._prompt_token_ids)
            events.append(event(chunk))
        return b"".join(events)

    def events(self, index: int, delta: ChoiceDelta, usage: Usage | None) -> bytes:
        """The events of one choice's news; `usage` is that of the request so far, where each chunk tells it.

        Raises:
            ApiError: the choice failed.
        """
        options, choice, output = self._options, self._choices[index], delta.output
        shown: UsageField = usage if options.usage_always else None if options.usage_chunk else UNSET
        parts = [_chunk_delta(item) for item in self._take(choice, delta)]
        chunks = [ChunkChoice(index, part) for part in parts]
        wants_tokens = bool(output.token_ids) and (options.logprobs or options.token_ids)
        if wants_tokens and not chunks:
            chunks = [ChunkChoice(index, Delta(content=""))]
        if wants_tokens:
            chunks[0].logprobs = self._writer.chat(output.logprobs) if options.logprobs else None
            chunks[0].token_ids = optional(options.token_ids, output.token_ids)
        if choice.finish_reason is not None:
            chunks += [ChunkChoice(index, Delta(), finish_reason=choice.finish_reason, stop_reason=choice.stop_reason)]
        return b"".join(event(self._chunk([chunk], shown)) for chunk in chunks)

    def usage_event(self, usage: Usage) -> bytes:
        """The last event before [DONE], where it is wanted."""
        return event(self._chunk([], usage)) if self._options.usage_chunk else b""

    def collect(self, index: int, delta: ChoiceDelta) -> None:
        """Takes one choice's news for `whole`.

        Raises:
            ApiError: the choice failed.
        """
        choice, output = self._choices[index], delta.output
        choice.deltas += self._take(choice, delta)
        choice.token_ids += output.token_ids
        choice.logprobs += output.logprobs
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs

    def whole(self, usage: Usage) -> bytes:
        """The answer as one JSON object, when all choices have ended."""
        head, options = self._head, self._options
        answer = Completion(
            head.id,
            head.created,
            head.model,
            [self._whole_choice(index, choice) for index, choice in enumerate(self._choices)],
            usage,
            optional(options.token_ids, self._prompt_token_ids),
        )
        if options.prompt_logprobs and self._prompt_logprobs is not None:
            answer.prompt_logprobs = self._writer.prompt(self._prompt_logprobs)
        return json_bytes(answer)

    def _chunk(self, choices: list[ChunkChoice], usage: UsageField) -> Chunk:
        head = self._head
        return Chunk(head.id, head.created, head.model, choices, usage)

    def _take(self, choice: _Choice, delta: ChoiceDelta) -> list[ReplyDelta]:
        """What a choice's news show, and how it ended, if it did."""
        reason = finish_reason(delta.output)
        if choice.parser is None:
            deltas: list[ReplyDelta] = [ContentDelta(delta.text)] if delta.text else []
        else:
            deltas = choice.parser.push(delta.text) if delta.text else []
            if reason is not None:
                deltas = [*deltas, *choice.parser.finish()]
            deltas = [item for item in deltas if self._is_wanted(item)]
            _note_calls(choice, deltas)
        if reason is not None:
            is_cut = delta.output.stop_reason is not None and not _is_object("".join(choice.last_arguments))
            choice.finish_reason = "tool_calls" if reason == "stop" and choice.has_called and not is_cut else reason
            choice.stop_reason = delta.output.stop_reason
        return deltas

    def _is_wanted(self, delta: ReplyDelta) -> bool:
        if isinstance(delta, ReasoningDelta):
            return self._options.reasoning
        if isinstance(delta, ToolCallStart | ToolCallArguments):
            return self._options.parallel_tool_calls or delta.index == 0
        return True

    def _whole_choice(self, index: int, choice: _Choice) -> WholeChoice:
        reply = assemble(choice.deltas)
        calls = [
            ToolCallPart(UNSET, FunctionPart(call.name, call.arguments), call.call_id, "function")
            for call in reply.tool_calls
        ]
        message = Message(
            None if calls and not reply.content else reply.content,
            optional(bool(reply.reasoning), reply.reasoning),
            optional(bool(calls), calls),
        )
        return WholeChoice(
            index,
            message,
            self._writer.chat(choice.logprobs) if self._options.logprobs else None,
            choice.finish_reason,
            choice.stop_reason,
            optional(self._options.token_ids, choice.token_ids),
        )


def _note_calls(choice: _Choice, deltas: Sequence[ReplyDelta]) -> None:
    for item in deltas:
        if isinstance(item, ToolCallStart):
            choice.has_called = True
            choice.last_arguments.clear()
        elif isinstance(item, ToolCallArguments):
            choice.last_arguments.append(item.fragment)


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _chunk_delta(item: ReplyDelta) -> Delta:
    match item:
        case ContentDelta(text):
            return Delta(content=text)
        case ReasoningDelta(text):
            return Delta(reasoning_content=text)
        case ToolCallStart(index, call_id, name):
            return Delta(tool_calls=[ToolCallPart(index, FunctionPart(name, ""), call_id, "function")])
        case ToolCallArguments(index, fragment):
            return Delta(tool_calls=[ToolCallPart(index, FunctionPart(arguments=fragment))])
