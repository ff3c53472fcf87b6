"""A compiled grammar, and a cursor in it, as the core's contract for logits constraints wants it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, final

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from tokenloom.errors import RequestError
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.structured.vocabulary import TokenVocabulary

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CompiledGrammar", "GrammarConstraint", "short_error"]

_log = logging.getLogger(__name__)
_MAX_MESSAGE_CHARS = 500
# Ordinary masks take a twentieth of this; in some grammars a token costs more the longer the text is.
_ALLOWED_S, _ALLOWED_PER_MASK_S = 0.2, 0.003
_MOST_RENEWAL_S = 0.05
"""A grammar that took longer to compile is not compiled again while others wait."""
_Result = TypeVar("_Result")
BuildMatcher = Callable[[GrammarSpec, TokenVocabulary], tuple[LLMatcher, float]]
# How the library's messages begin; its stop reasons do not tell these apart.
_LEXER_LIMIT = "lexer error"
_NO_TEXT = "NoExtension"


@final
class CompiledGrammar:
    """A grammar that was compiled for a vocabulary. Pickled as what it was made of, and compiled again.

    Attributes:
        is_spent: a limit that all its cursors share was met, and it must be compiled anew.
        build_s: CPU time that compiling took.
    """

    def __init__(self, spec: GrammarSpec, vocabulary: TokenVocabulary, build: BuildMatcher) -> None:
        """`build` returns a matcher, and the CPU time that it took, seconds."""
        self.spec = spec
        self.vocabulary = vocabulary
        self.is_spent = False
        self._build = build
        self._matcher, self.build_s = build(spec, vocabulary)

    def __reduce__(self) -> tuple[type[CompiledGrammar], tuple[object, ...]]:
        return CompiledGrammar, (self.spec, self.vocabulary, self._build)

    def start(self) -> LLMatcher:
        """A matcher in the initial state."""
        return self._matcher.deep_copy()

    def renew(self) -> bool:
        """Compiles once more: copies of a matcher share their lexer's states, whose number is limited for all.

        Returns whether it did; if that takes too long, whoever asks for this grammar next has to.
        """
        self.is_spent = self.build_s > _MOST_RENEWAL_S
        if not self.is_spent:
            self._matcher, self.build_s = self._build(self.spec, self.vocabulary)
        return not self.is_spent


@final
class GrammarConstraint(LogitsConstraint):
    """One cursor. End-of-sequence tokens are legal where the grammar may end, any of them; the first ends it.

    The library's matcher never leaves an error, which comes from its limits; then the cursor is built anew with limits
    of its own, and if that does not help, nothing is legal any more and the request ends with an error. So does
    one whose cursor has taken much more CPU time than is ordinary: others wait for it.
    """

    def __init__(
        self,
        grammar: CompiledGrammar,
        token_ids: Sequence[int] = (),
        *,
        is_terminated: bool = False,
        matcher: LLMatcher | None = None,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """A cursor behind `token_ids`, which the grammar allows; `matcher` stands there already, if it is given.

        `cpu_clock` tells the CPU time of this thread, seconds.
        """
        self._grammar = grammar
        self._ends = np.array(grammar.vocabulary.eos_token_ids, np.int64)
        self._token_ids = list(token_ids)
        self._is_terminated = is_terminated
        self._cpu_clock = cpu_clock
        self._taken_s, self._num_masks = 0.0, 0
        self._failure = ""
        self._matcher = self._replayed() if matcher is None else matcher

    def __reduce__(self) -> tuple[Callable[..., GrammarConstraint], tuple[object, ...]]:
        return _restored, (self._grammar, tuple(self._token_ids), self._is_terminated)

    @property
    def is_spent(self) -> bool:
        """See `CompiledGrammar`."""
        return self._grammar.is_spent

    def check_beginning(self) -> None:
        """Raises RequestError if no token is legal here, for a cursor in the initial state."""
        if self._legal().any():
            return
        kind, error = self._grammar.spec.kind, short_error(self._matcher)
        if error and _NO_TEXT not in error:
            raise RequestError(f"the {kind} is too complex: {error}")
        raise RequestError(f"the {kind} allows no text at all; check that its parts do not contradict each other")

    def allowed_mask(self, out: Tensor) -> None:
        out.numpy()[:] = self._legal().view(np.bool_)

    def fork(self) -> GrammarConstraint:
        # A cursor that has not moved starts from the grammar as it is now, which may be newer than this one's.
        matcher = self._matcher.deep_copy() if self._token_ids else self._grammar.start()
        fork = GrammarConstraint(
            self._grammar,
            self._token_ids,
            is_terminated=self._is_terminated,
            matcher=matcher,
            cpu_clock=self._cpu_clock,
        )
        if self._token_ids:
            fork._taken_s, fork._num_masks = self._taken_s, self._num_masks
        return fork

    def advance(self, token_id: int) -> bool:
        if self._is_terminated:
            return False
        if token_id in self._grammar.vocabulary.eos_token_ids and self._matcher.is_accepting():
            self._is_terminated = True
            return True
        num_taken = self._timed(lambda: self._matcher.try_consume_tokens([token_id]))
        if self._has_met_shared_limit and self._timed(self._renew):
            num_taken = self._timed(lambda: self._matcher.try_consume_tokens([token_id]))
        # A legal token that meets a limit counts as taken; nothing is legal behind it.
        is_taken = num_taken == 1 or self._matcher.is_error()
        if is_taken:
            self._token_ids.append(token_id)
        return is_taken

    def rollback(self, num_tokens: int) -> None:
        if num_tokens and self._is_terminated:
            self._is_terminated = False
            num_tokens -= 1
        if num_tokens == 0:
            return
        assert num_tokens <= len(self._token_ids), f"rollback of {num_tokens} behind {len(self._token_ids)} tokens"
        del self._token_ids[len(self._token_ids) - num_tokens :]
        if self._matcher.is_error() or not self._matcher.rollback(num_tokens):
            self._matcher = self._replayed()

    @property
    def is_terminated(self) -> bool:
        return self._is_terminated

    @property
    def failure(self) -> str:
        return self._failure

    def _legal(self) -> npt.NDArray[np.uint8]:
        """0 or 1 per token, [V]."""
        num_tokens = len(self._grammar.vocabulary.tokens)
        self._failure = ""
        if self._taken_s > _ALLOWED_S + _ALLOWED_PER_MASK_S * self._num_masks:
            return self._nothing(
                f"it took {self._taken_s:.2f} s of CPU time for {self._num_masks} masks, far more than is ordinary; "
                "make it less ambiguous"
            )
        self._num_masks += 1
        bits = self._timed(self._matcher.compute_bitmask)
        if self._has_met_shared_limit and self._timed(self._renew):
            bits = self._timed(self._matcher.compute_bitmask)
        if self._matcher.is_error():
            return self._nothing(short_error(self._matcher))
        legal = np.unpackbits(np.frombuffer(bits, np.uint8), count=num_tokens, bitorder="little")
        legal[self._ends] |= self._matcher.is_accepting()
        return legal

    def _nothing(self, reason: str) -> npt.NDArray[np.uint8]:
        self._failure = f"the {self._grammar.spec.kind} was given up: {reason}"
        _log.warning("structured output: %s", self._failure)
        return np.zeros(len(self._grammar.vocabulary.tokens), np.uint8)

    def _timed(self, call: Callable[[], _Result]) -> _Result:
        start_s = self._cpu_clock()
        result = call()
        self._taken_s += self._cpu_clock() - start_s
        return result

    @property
    def _has_met_shared_limit(self) -> bool:
        return self._matcher.is_error() and _LEXER_LIMIT in self._matcher.get_error()

    def _renew(self) -> bool:
        """Goes on with a matcher that has all its limits before it, if there is one."""
        if not self._grammar.renew():
            return False
        # Another thread has compiled it, for which this one has waited.
        self._taken_s += self._grammar.build_s
        self._matcher = self._replayed()
        return True

    def _replayed(self) -> LLMatcher:
        matcher = self._grammar.start()
        if self._token_ids:
            matcher.consume_tokens(self._token_ids)
        return matcher


def short_error(matcher: LLMatcher) -> str:
    """What a matcher in an error state says of it, in one line."""
    return " ".join(matcher.get_error().replace("<non-verbose/>", "").split())[:_MAX_MESSAGE_CHARS]


def _restored(grammar: CompiledGrammar, token_ids: tuple[int, ...], is_terminated: bool) -> GrammarConstraint:
    return GrammarConstraint(grammar, token_ids, is_terminated=is_terminated)
