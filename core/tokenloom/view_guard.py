"""What a faulty policy could change of the requests that it may only read; compared by debug.checks=full."""

from __future__ import annotations

from collections.abc import Iterable

from tokenloom.request import Request

__all__ = ["progress_of"]


def progress_of(requests: Iterable[Request]) -> list[tuple[object, ...]]:
    """The progress of live requests, to be compared before and after a policy saw them."""
    return [
        (
            r.request_id,
            r.status,
            r.priority,
            r.num_tokens,
            r.num_drafts,
            r.num_computed_tokens,
            r.num_inflight_tokens,
        )
        for r in requests
    ]
