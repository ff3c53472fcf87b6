"""Copy on write of the last block of a prompt that several choices share.

Full blocks are shared through the prefix index. The last, unfinished block of the prompt is written by each choice, so
every one but the first gets a copy of it, and computes the prompt's last token alone.

    choice 0    [ 5 | 2 | 7 ]     block 7 holds the prompt's tail, and output since
    choice 1    [ 5 | 2 | 9 ]     9 is a copy of 7; from the last prompt token on it is overwritten
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from tokenloom.batch import BlockCopy
from tokenloom.kv.block_pool import NULL_BLOCK
from tokenloom.kv.prefix_match import PrefixMatch
from tokenloom.request import Request

__all__ = ["SiblingCopies"]


@final
class SiblingCopies:
    """Who computes the prompt of each set of choices, and which blocks are to be copied in the coming step."""

    def __init__(self, block_size: int, num_lookahead: int, *, is_on: bool) -> None:
        """`num_lookahead`: how far an entry may depend on the tokens behind it. `is_on`: see `KVManager`."""
        self._block_size = block_size
        self._num_lookahead = num_lookahead
        self._is_on = is_on
        self._holders: dict[str, dict[str, Request]] = {}
        self.sources: dict[str, tuple[int, ...]] = {}
        """By request that starts: the blocks, one per KV group, that it still has to be given a copy of."""
        self._copies: list[BlockCopy] = []

    def tail_tokens(self, request: Request) -> int:
        """Tokens that a request which waits for the first time could have without computing them; 0 if none.

        That is all of its prompt but the last token, if it is one of several choices and the last block is not full.
        """
        if not self._is_on or not request.choice_set or request.output_token_ids:
            return 0
        # An entry that depends on the next tokens is known as far as those belong to the prompt.
        num_tokens = request.num_prompt_tokens - max(1, self._num_lookahead)
        return num_tokens if num_tokens > 0 and num_tokens % self._block_size else 0

    def extend(
        self, match: PrefixMatch, request: Request, tables: Mapping[str, Sequence[Sequence[int]]]
    ) -> PrefixMatch:
        """Adds the last block of the prompt to what a request found, if a sibling has computed it."""
        num_tokens = self.tail_tokens(request)
        if num_tokens == 0 or match.num_tokens != num_tokens - num_tokens % self._block_size:
            return match
        index = num_tokens // self._block_size
        for holder in self._holders.get(request.choice_set, {}).values():
            sources = [table[index] if index < len(table) else NULL_BLOCK for table in tables[holder.request_id]]
            if holder.num_computed_tokens >= num_tokens and NULL_BLOCK not in sources:
                return PrefixMatch(
                    num_tokens,
                    tuple((*ids, NULL_BLOCK) for ids in match.block_ids),
                    tuple((index,) for _ in match.block_ids),
                    tuple(sources),
                )
        return match

    def start(self, request: Request, match: PrefixMatch) -> None:
        """Takes note that a request holds memory now."""
        if self._is_on and request.choice_set:
            self._holders.setdefault(request.choice_set, {})[request.request_id] = request
        if match.copies:
            self.sources[request.request_id] = match.copies

    def copying(self, request: Request) -> int | None:
        """The table index of the block that a request still has to be given a copy of, or None."""
        return self.tail_tokens(request) // self._block_size if request.request_id in self.sources else None

    def copy(self, request: Request, targets: Sequence[int]) -> None:
        """Has the executor fill a request's new blocks, one per KV group."""
        self._copies.append(BlockCopy(self.sources.pop(request.request_id), tuple(targets)))

    def stop(self, request: Request) -> None:
        """Takes note that a request gave its memory back."""
        holders = self._holders.get(request.choice_set)
        if holders is not None:
            holders.pop(request.request_id, None)
            if not holders:
                del self._holders[request.choice_set]

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """What the executor has to do in the coming step."""
        copies, self._copies = tuple(self._copies), []
        return copies
