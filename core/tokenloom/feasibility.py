"""Which requests can never run: refused at once, with the limit in the message."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.errors import CONTEXT_LENGTH_EXCEEDED, RequestError
from tokenloom.request import Request

__all__ = ["RequestLimits", "check_feasible"]


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Hard limits on one request.

    Attributes:
        max_model_len: longest sequence (prompt and output) of the model, tokens.
        max_kv_tokens: tokens whose KV fits when the request runs alone.
        vocab_size: token ids are below it.
    """

    max_model_len: int
    max_kv_tokens: int
    vocab_size: int

    @property
    def max_total_tokens(self) -> int:
        """Longest sequence that can run: the last token's KV is never stored, so one more than the memory holds."""
        return min(self.max_model_len, self.max_kv_tokens + 1)


def check_feasible(request: Request, limits: RequestLimits, num_reserved_tokens: int = 0) -> None:
    """Raises RequestError if the request cannot run, however long it waits.

    A prompt that leaves room for fewer than `max_tokens` output tokens runs, and ends with reason "length".

    Args:
        request: to be added.
        limits: of this engine.
        num_reserved_tokens: tokens whose memory the cache reserves for it at admission.
    """
    if not request.prompt_token_ids:
        raise RequestError("the prompt has no tokens; give at least one", "prompt")
    worst = max(request.prompt_token_ids) if min(request.prompt_token_ids) >= 0 else min(request.prompt_token_ids)
    if not 0 <= worst < limits.vocab_size:
        raise RequestError(f"token id {worst} is not in the model's vocabulary 0..{limits.vocab_size - 1}", "prompt")
    if request.num_prompt_tokens >= limits.max_model_len:
        raise RequestError(
            f"the prompt has {request.num_prompt_tokens} tokens and leaves no room for output within "
            f"max_model_len={limits.max_model_len}; shorten the prompt or raise model.max_model_len",
            "prompt",
            code=CONTEXT_LENGTH_EXCEEDED,
        )
    if request.num_prompt_tokens > limits.max_kv_tokens:
        raise RequestError(
            f"the prompt has {request.num_prompt_tokens} tokens, the whole KV cache holds {limits.max_kv_tokens}; "
            "shorten the prompt or raise cache.num_blocks",
            "prompt",
        )
    if num_reserved_tokens > limits.max_kv_tokens:
        raise RequestError(
            f"the cache reserves memory for {num_reserved_tokens} tokens, the whole KV cache holds "
            f"{limits.max_kv_tokens}; lower model.max_model_len or raise cache.num_blocks"
        )
    if request.max_total_tokens > limits.max_total_tokens:
        raise AssertionError(f"max_total_tokens {request.max_total_tokens} exceeds {limits.max_total_tokens}")
