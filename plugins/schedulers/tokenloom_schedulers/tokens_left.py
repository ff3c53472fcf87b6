"""How many tokens a request has to compute before its next one comes out."""

from __future__ import annotations

from tokenloom.request import RequestView

__all__ = ["num_tokens_left"]


def num_tokens_left(request: RequestView) -> int:
    """Tokens to compute before the next one comes out, drafts not counted; a cached prefix is not known here."""
    return (
        request.num_tokens + request.num_placeholder_tokens - request.num_computed_tokens - request.num_inflight_tokens
    )
