"""What `LLM` returns: one `RequestOutput` for each prompt, one `CompletionOutput` for each choice."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenloom.batch import TokenLogprobs

__all__ = ["CompletionOutput", "RequestMetrics", "RequestOutput", "StreamDelta"]


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times of one choice, seconds; None where it ended before.

    Attributes:
        ttft_s: from arrival to the first token.
        tpot_s: mean time per output token after the first: (e2e - ttft) / (output tokens - 1).
        e2e_s: from arrival to the end.
        queue_s: from arrival to the first step that it was part of.
        token_times_s: when each chunk of tokens landed, from arrival.
        tokens_per_chunk: tokens in each chunk.
    """

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    queue_s: float | None
    token_times_s: tuple[float, ...] = ()
    tokens_per_chunk: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice.

    Attributes:
        index: 0..n-1.
        text: without the stop string that ended it, unless asked for.
        token_ids: all output tokens, a stop token included.
        finish_reason: "stop", "length", "abort" or "error".
        stop_reason: the stop string or token id, if one ended it.
        logprobs: one per token, if asked for, else None.
        error: message, with finish_reason "error".
        metrics: times.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None
    error: str | None = None
    metrics: RequestMetrics = field(default_factory=lambda: RequestMetrics(None, None, None, None))


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All choices of one prompt.

    Attributes:
        prompt: the text, or None when token ids were given.
        prompt_token_ids: what the model saw.
        outputs: n choices, by index.
        num_cached_tokens: prompt tokens of the first choice that came from the prefix cache.
        prompt_logprobs: one for each token of the prompt, None for the first, which nothing comes before; None if they
            were not asked for, or the request failed before its first token.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    prompt_logprobs: list[TokenLogprobs | None] | None = None


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """A piece of a streamed choice; `finish_reason` is set in its last one."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    error: str | None = None
