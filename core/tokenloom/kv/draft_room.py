"""Slots in a drafter's own KV groups beyond a step's tokens: what is drafted after the step is written there.

They come from blocks that the step's plan leaves over, so that nobody goes without for the sake of guesses: where none
are left, less is drafted. A table keeps them for the request's next tokens.

    target's table    [ tokens of the step ]
    drafter's table   [ tokens of the step ][ drafts ]
"""

from __future__ import annotations

from typing import final

from tokenloom.kv.manager import KVManager
from tokenloom.request import Request

__all__ = ["DraftRoom"]


@final
class DraftRoom:
    """Counts what one step's requests take. Blocks are allocated by `KVManager.grow`."""

    def __init__(self, kv: KVManager, num_spare_blocks: int) -> None:
        """`num_spare_blocks`: what each KV group could still get when the plan is carried out."""
        self._kv = kv
        self._num_spare = num_spare_blocks

    def take(self, request: Request, num_slots: int, max_drafts: int) -> int:
        """Takes room for drafts behind a request's first `num_slots` slots; returns how many fit of `max_drafts`."""
        kv, size = self._kv, self._kv.block_size
        tables = kv.tables(request.request_id)
        num_held = max(-(-num_slots // size), *(len(tables[group]) for group in kv.draft_groups))
        num_drafts = max(0, min(max_drafts, (num_held + self._num_spare) * size - num_slots))
        self._num_spare -= max(0, -(-(num_slots + num_drafts) // size) - num_held)
        return num_drafts
