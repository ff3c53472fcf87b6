"""From engine outputs to text: detokenizes each request's new tokens and ends requests at their stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from tokenloom.engine_output import EngineOutput
from tokenloom.request import FinishReason, Request
from tokenloom.text.detokenizer import IncrementalDetokenizer
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["ChoiceDelta", "OutputProcessor"]

Truncate = Callable[[str, int, str], EngineOutput | None]
"""`Engine.truncate`: (request_id, number of output tokens to keep, stop string)."""


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What a step adds to a choice: text that may be shown now, and the engine's output, cut at a stop string."""

    text: str
    output: EngineOutput


@dataclass(slots=True)
class _Choice:
    detokenizer: IncrementalDetokenizer
    includes_stop: bool
    num_tokens: int = 0


@final
class OutputProcessor:
    """Holds a detokenizer for each live request."""

    def __init__(self, tokenizer: Tokenizer, truncate: Truncate) -> None:
        self._tokenizer = tokenizer
        self._truncate = truncate
        self._choices: dict[str, _Choice] = {}

    def add(self, request: Request) -> None:
        """Starts the text of a request."""
        params = request.params
        follows_text = self._tokenizer.has_text(
            request.prompt_token_ids, skip_special_tokens=params.skip_special_tokens
        )
        detokenizer = IncrementalDetokenizer(
            self._tokenizer,
            tuple(params.stop),
            include_stop_str=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            min_tokens=params.min_tokens,
            continues=follows_text,
        )
        self._choices[request.request_id] = _Choice(detokenizer, params.include_stop_str_in_output)

    def process(self, outputs: Sequence[EngineOutput]) -> list[ChoiceDelta]:
        """Turns the outputs of one step into deltas; must see every output of its requests, in order."""
        return [self._process(output) for output in outputs]

    def forget(self, request_id: str) -> None:
        """Drops the text of an aborted request; unknown ids are ignored."""
        self._choices.pop(request_id, None)

    def _process(self, output: EngineOutput) -> ChoiceDelta:
        choice = self._choices[output.request_id]
        is_token_stop = output.finish_reason is FinishReason.STOP and isinstance(output.stop_reason, int)
        # The token that ended the request is part of the ids, but of the text only if that was asked for.
        shown_ids = output.token_ids[:-1] if is_token_stop and not choice.includes_stop else output.token_ids
        delta = choice.detokenizer.push(shown_ids)
        if delta.stop is not None:
            return self._stop(output, delta.text, delta.stop, delta.num_tokens - choice.num_tokens)
        choice.num_tokens += len(output.token_ids)
        text = delta.text
        if output.finish_reason is not None:
            end = choice.detokenizer.finish()
            text += end.text
            del self._choices[output.request_id]
            if end.stop is not None:
                # Half a character was held back, and what stands for it completes a stop string.
                output = replace(output, finish_reason=FinishReason.STOP, stop_reason=end.stop, error=None)
        return ChoiceDelta(text, output)

    def _stop(self, output: EngineOutput, text: str, stop: str, num_kept: int) -> ChoiceDelta:
        """Ends a request at a stop string that lies in the num_kept-th of its new tokens."""
        choice = self._choices.pop(output.request_id)
        last = self._truncate(output.request_id, choice.num_tokens + num_kept, stop)
        cut = replace(
            output,
            token_ids=output.token_ids[:num_kept],
            logprobs=output.logprobs[:num_kept],
            finish_reason=FinishReason.STOP,
            stop_reason=stop,
            error=None,
            # A request that had ended by itself in this step cannot be truncated any more; its times stand.
            times=output.times if last is None else last.times,
        )
        return ChoiceDelta(text, cut)
