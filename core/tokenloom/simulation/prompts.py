"""Token ids for requests of a workload that tells lengths and shared blocks only."""

from __future__ import annotations

from typing import final

from tokenloom.simulation.timed_request import TimedRequest

__all__ = ["PromptMaker"]

_FILLER, _OWN = 0, 1
_NUM_RESERVED = 2


@final
class PromptMaker:
    """Prompts that are equal exactly as far as their shared blocks are, and differ from the first token behind them.

    A shared block is its id, written in tokens, and filler; what a request shares with nobody is a mark, the number of
    the request, and filler.
    """

    def __init__(self, vocab_size: int) -> None:
        assert vocab_size > _NUM_RESERVED + 1, f"{vocab_size} token ids are too few to write numbers"
        self._base = vocab_size - _NUM_RESERVED
        self._num_made = 0

    def make(self, request: TimedRequest) -> list[int]:
        """The prompt of one request. Every call is another request."""
        number = self._num_made
        self._num_made += 1
        if request.token_ids is not None:
            return list(request.token_ids)
        token_ids: list[int] = []
        for block_id in request.shared_ids:
            token_ids += self._padded(self._digits(block_id), request.shared_block_tokens)
        num_own = request.num_prompt_tokens - len(token_ids)
        if num_own > 0:
            return token_ids + self._padded([_OWN, *self._digits(number)], num_own)
        return token_ids[: request.num_prompt_tokens]

    def _digits(self, number: int) -> list[int]:
        """A number, its last digit first, so that numbers near each other differ in their first token."""
        digits = [number % self._base + _NUM_RESERVED]
        while number := number // self._base:
            digits.append(number % self._base + _NUM_RESERVED)
        return digits

    def _padded(self, digits: list[int], length: int) -> list[int]:
        return digits[:length] + [_FILLER] * (length - len(digits))
