"""Token ids for requests of a workload that tells lengths and shared blocks only."""

from __future__ import annotations

from typing import final

from tokenloom.simulation.timed_request import TimedRequest

__all__ = ["PromptMaker"]

_FILLER = 0
_NUM_RESERVED = 1


@final
class PromptMaker:
    """Prompts that are equal exactly as far as their shared blocks are, and differ from the first token behind them.

    A shared block is its id, written in tokens, and filler; so is what a request shares with nobody, but of its number.
    The first token of a shared block is of the lower half of the vocabulary, that of the rest of a prompt of the upper
    half: no prompt's own part can be taken for a block, and any two of them differ in their first token, as long as
    there are ids for that.
    """

    def __init__(self, vocab_size: int) -> None:
        assert vocab_size > _NUM_RESERVED + 1, f"{vocab_size} token ids are too few to write numbers"
        self._base = vocab_size - _NUM_RESERVED
        self._num_shared_firsts = self._base // 2
        self._num_made = 0

    def make(self, request: TimedRequest) -> list[int]:
        """The prompt of one request. Every call is another request."""
        number = self._num_made
        self._num_made += 1
        if request.token_ids is not None:
            return list(request.token_ids)
        token_ids: list[int] = []
        for block_id in request.shared_ids:
            token_ids += self._written(block_id, 0, self._num_shared_firsts, request.shared_block_tokens)
        num_own = request.num_prompt_tokens - len(token_ids)
        if num_own > 0:
            num_firsts = self._base - self._num_shared_firsts
            return token_ids + self._written(number, self._num_shared_firsts, num_firsts, num_own)
        return token_ids[: request.num_prompt_tokens]

    def _written(self, number: int, lowest: int, num_firsts: int, length: int) -> list[int]:
        """A number in tokens, its last digit first: numbers near each other differ in their first token.

        The first token is one of `num_firsts`, from `lowest` on; a number that is longer than `length` is cut.
        """
        rest, digit = divmod(number, num_firsts)
        digits = [lowest + digit + _NUM_RESERVED]
        while rest:
            rest, digit = divmod(rest, self._base)
            digits.append(digit + _NUM_RESERVED)
        return digits[:length] + [_FILLER] * (length - len(digits))
