"""What a front end knows of a request once it is answered: the source of its spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenloom.engine_output import RequestTimes
from tokenloom.sampling_params import SamplingParams

__all__ = ["ChoiceTrace", "RequestTrace"]


@dataclass(frozen=True, slots=True)
class ChoiceTrace:
    """One choice, or what there is of it.

    Attributes:
        index: 0..n-1, over all prompts of the request.
        times: as the engine told last.
        last_token_s: when its last tokens landed, on the engine's clock; None without tokens.
        num_output_tokens: how many there are.
        finish_reason: as the client was told; None if it was not.
    """

    index: int
    times: RequestTimes
    last_token_s: float | None
    num_output_tokens: int
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """One HTTP request that asked for tokens. Times are seconds on the engine's clock.

    Attributes:
        headers: of the request, names in lower case; `traceparent` and `tracestate` say whose trace it continues.
        operation: "chat" or "text_completion".
        route: its pattern, e.g. "/v1/chat/completions".
        status: HTTP status of the answer.
        request_id, model: as in the answer. What the engine calls its parts begins with the id.
        http_request_id: as in the header X-Request-Id, and in the server's log.
        arrival_s, end_s: from the request's head to the last byte of the answer.
        first_byte_s: when the first tokens left; None if none did.
        params: how tokens were sampled; None for a request that was refused before that was known.
        num_prompt_tokens, num_cached_tokens: over all prompts.
        choices: all that the engine took in.
        error: what went wrong, as the client was told; None if nothing did.
    """

    headers: Mapping[str, str]
    operation: str
    route: str
    status: int
    request_id: str
    http_request_id: str
    model: str
    arrival_s: float
    end_s: float
    first_byte_s: float | None = None
    params: SamplingParams | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    choices: tuple[ChoiceTrace, ...] = ()
    error: str | None = None
