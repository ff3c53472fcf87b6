"""News of choices, made by hand: what the pure writers of answers are fed."""

from __future__ import annotations

from tokenloom.batch import TokenLogprobs
from tokenloom.engine_output import EngineOutput, RequestTimes
from tokenloom.request import FinishReason
from tokenloom.text.output_processor import ChoiceDelta

__all__ = ["delta"]


def delta(
    text: str,
    token_ids: list[int] | None = None,
    reason: FinishReason | None = None,
    stop_reason: int | str | None = None,
    *,
    logprobs: tuple[TokenLogprobs, ...] | None = None,
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None,
    error: str | None = None,
) -> ChoiceDelta:
    """A delta whose tokens are the text's bytes, each as likely as e^-1, unless told otherwise."""
    ids = list(text.encode()) if token_ids is None else token_ids
    entries = tuple(TokenLogprobs(token_id, -1.0, ((token_id, -1.0),)) for token_id in ids)
    output = EngineOutput(
        request_id="r",
        token_ids=ids,
        logprobs=entries if logprobs is None else logprobs,
        finish_reason=reason,
        stop_reason=stop_reason,
        num_cached_tokens=0,
        error=error,
        landed_s=0.0,
        times=RequestTimes(0.0),
        prompt_logprobs=prompt_logprobs,
    )
    return ChoiceDelta(text, output)
