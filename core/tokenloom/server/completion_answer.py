"""Answers of /v1/completions, streamed and whole, from the same pieces. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import msgspec
from msgspec import UNSET, UnsetType

from tokenloom.batch import TokenLogprobs
from tokenloom.server.answer_parts import AnswerHead, Usage, UsageField, event, finish_reason, json_bytes, optional
from tokenloom.server.logprob_shapes import CompletionLogprobs, LogprobWriter, PromptLogprob
from tokenloom.server.text_offsets import TextOffsets
from tokenloom.text.output_processor import ChoiceDelta

__all__ = ["CompletionAnswer", "CompletionOptions", "EchoedPrompt"]


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt: its text if it is echoed, and its tokens."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class CompletionOptions:
    """What an answer holds.

    Attributes:
        n: choices for each prompt.
        echo: the text begins with the prompt.
        num_logprobs: None for none, else how many other tokens at each position.
        prompt_logprobs: those of the prompt are wanted beside the text, not in it.
        token_ids: token ids are wanted.
        usage_chunk, usage_always: of `stream_options`.
    """

    n: int = 1
    echo: bool = False
    num_logprobs: int | None = None
    prompt_logprobs: bool = False
    token_ids: bool = False
    usage_chunk: bool = False
    usage_always: bool = False


class CompletionChoice(msgspec.Struct):
    """One choice, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """An answer, or a chunk of one."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageField = UNSET
    object: str = "text_completion"


@dataclass(slots=True)
class _Progress:
    has_begun: bool = False
    offsets: TextOffsets | None = None
    held: list[ChoiceDelta] = field(default_factory=list)


@final
class CompletionAnswer:
    """Turns the news of one request into events, or collects them into one answer."""

    def __init__(
        self, head: AnswerHead, options: CompletionOptions, prompts: Sequence[EchoedPrompt], writer: LogprobWriter
    ) -> None:
        self._head = head
        self._options = options
        self._prompts = prompts
        self._writer = writer
        self._progress = [_Progress() for _ in range(len(prompts) * options.n)]
        self._prompt_logprobs: dict[int, Sequence[TokenLogprobs | None]] = {}
        self._pieces: list[list[CompletionChoice]] = [[] for _ in self._progress]

    def begin(self) -> bytes:
        """Events before the first news: none."""
        return b""

    def events(self, index: int, delta: ChoiceDelta, usage: Usage | None) -> bytes:
        """The events of one choice's news; `usage` is that of the request so far, where each chunk tells it.

        Raises:
            ApiError: the choice failed.
        """
        options = self._options
        shown: UsageField = usage if options.usage_always else None if options.usage_chunk else UNSET
        return b"".join(self._event([piece], shown) for piece in self._take(index, delta))

    def usage_event(self, usage: Usage) -> bytes:
        """The last event before [DONE], where it is wanted."""
        return self._event([], usage) if self._options.usage_chunk else b""

    def collect(self, index: int, delta: ChoiceDelta) -> None:
        """Takes one choice's news for `whole`.

        Raises:
            ApiError: the choice failed.
        """
        for piece in self._take(index, delta):
            self._pieces[piece.index].append(piece)

    def whole(self, usage: Usage) -> bytes:
        """The answer as one JSON object, when all choices have ended."""
        head = self._head
        choices = [_joined(pieces) for pieces in self._pieces]
        return json_bytes(Completion(head.id, head.created, head.model, choices, usage))

    def _event(self, choices: list[CompletionChoice], usage: UsageField) -> bytes:
        head = self._head
        return event(Completion(head.id, head.created, head.model, choices, usage))

    def _take(self, index: int, delta: ChoiceDelta) -> Iterator[CompletionChoice]:
        """Pieces that can be shown. A prompt's logprobs come with its first choice; the others wait for them."""
        prompt, number = divmod(index, self._options.n)
        known = delta.output.prompt_logprobs
        if known is None and self._needs_prompt_logprobs and prompt not in self._prompt_logprobs:
            finish_reason(delta.output)  # raises where the choice has failed
            self._progress[index].held.append(delta)
            return
        if known is not None:
            self._prompt_logprobs[prompt] = known
        yield from self._pieces_of(index, delta)
        if known is not None and number == 0:
            for other in range(index + 1, index + self._options.n):
                held, self._progress[other].held = self._progress[other].held, []
                for waiting in held:
                    yield from self._pieces_of(other, waiting)

    @property
    def _needs_prompt_logprobs(self) -> bool:
        options = self._options
        return options.prompt_logprobs or (options.echo and options.num_logprobs is not None)

    def _pieces_of(self, index: int, delta: ChoiceDelta) -> Iterator[CompletionChoice]:
        progress, output = self._progress[index], delta.output
        piece = CompletionChoice(index, delta.text, finish_reason=finish_reason(output), stop_reason=output.stop_reason)
        if not progress.has_begun:
            progress.has_begun = True
            begin = self._beginning(index)
            if begin is not None:
                yield begin
        if self._options.num_logprobs is not None and output.token_ids:
            piece.logprobs = self._logprobs(output.logprobs, output.token_ids, self._output_offsets(index))
        if self._options.token_ids:
            piece.token_ids = output.token_ids
        if delta.text or piece.logprobs or piece.finish_reason or (self._options.token_ids and output.token_ids):
            yield piece

    def _beginning(self, index: int) -> CompletionChoice | None:
        """The piece with what is said of the prompt, if anything is."""
        options, number = self._options, index // self._options.n
        prompt, entries = self._prompts[number], self._prompt_logprobs.get(number)
        if not (options.echo or options.token_ids or options.prompt_logprobs):
            return None
        piece = CompletionChoice(index, prompt.text if options.echo else "")
        if options.echo and options.num_logprobs is not None and entries is not None:
            offsets = self._writer.prompt_offsets(prompt.text)
            piece.logprobs = self._logprobs(entries, prompt.token_ids, offsets)
        piece.prompt_token_ids = optional(options.token_ids, prompt.token_ids)
        if options.prompt_logprobs and entries is not None:
            piece.prompt_logprobs = self._writer.prompt(entries)
        return piece

    def _output_offsets(self, index: int) -> TextOffsets:
        progress, prompt = self._progress[index], self._prompts[index // self._options.n]
        if progress.offsets is None:
            start = len(prompt.text) if self._options.echo else 0
            progress.offsets = self._writer.output_offsets(prompt.token_ids, start)
        return progress.offsets

    def _logprobs(
        self, entries: Sequence[TokenLogprobs | None], token_ids: Sequence[int], offsets: TextOffsets
    ) -> CompletionLogprobs:
        return self._writer.completion(entries, token_ids, self._options.num_logprobs or 0, offsets)


def _joined(pieces: Sequence[CompletionChoice]) -> CompletionChoice:
    first, last = pieces[0], pieces[-1]
    whole: dict[str, Any] = {"prompt_token_ids": first.prompt_token_ids, "prompt_logprobs": first.prompt_logprobs}
    parts = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    if any(piece.token_ids is not UNSET for piece in pieces):
        whole["token_ids"] = [token_id for piece in pieces for token_id in (piece.token_ids or [])]
    return CompletionChoice(
        last.index,
        "".join(piece.text for piece in pieces),
        _joined_logprobs(parts) if parts else None,
        last.finish_reason,
        last.stop_reason,
        **whole,
    )


def _joined_logprobs(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    top = [entry for part in parts for entry in part.top_logprobs or ()]
    return CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[value for part in parts for value in part.token_logprobs],
        top_logprobs=None if parts[0].top_logprobs is None else top,
        text_offset=[offset for part in parts for offset in part.text_offset],
        bytes=[piece for part in parts for piece in part.bytes],
    )
