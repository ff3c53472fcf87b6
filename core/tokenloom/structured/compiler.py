"""Compiles grammars against a model's vocabulary, within limits, and keeps those of late."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import final
from weakref import WeakKeyDictionary

from llguidance import LLMatcher, LLParserLimits

from tokenloom.errors import RequestError
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.structured.constraint import CompiledGrammar, GrammarConstraint, short_error
from tokenloom.structured.deep_stack import on_deep_stack
from tokenloom.structured.grammar_text import library_grammar
from tokenloom.structured.schema_check import MAX_OPTIONAL_KEYS
from tokenloom.structured.vocabulary import TokenVocabulary, library_tokenizer, token_vocabulary
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["CheckCost", "GrammarCompiler", "compile_grammar", "compiled_constraint"]

CheckCost = Callable[[GrammarSpec, TokenVocabulary], None]
"""Raises RequestError for a grammar that would take too long to compile; see `CompileTrial`."""

_MAX_KEPT = 16
# What one mask may cost, since other requests wait for it: 5 to 10 ms, where ordinary ones take a tenth of one. A row
# has 4 items for each optional key that may come next, and work that grows with the square of its items where the
# grammar is ambiguous, which the cursor's own limit ends. A lexer state takes some 2 KB.
_LIMITS = LLParserLimits(
    max_items_in_row=4 * MAX_OPTIONAL_KEYS + 200,
    step_max_items=10_000,
    step_lexer_fuel=100_000,
    max_lexer_states=20_000,
    verbose_errors=False,
)


def compile_grammar(
    spec: GrammarSpec,
    tokenizer: Tokenizer,
    vocab_size: int,
    eos_token_ids: Collection[int],
    *,
    check_cost: CheckCost | None = None,
) -> GrammarConstraint:
    """Compiles `spec`, or finds it among the last ones that were compiled for this tokenizer.

    Args:
        spec: what the text must match.
        tokenizer: of the model.
        vocab_size: V, rows of the model's logits; those without a token are never legal.
        eos_token_ids: tokens that end a text: all of them are legal where the grammar may end, and nowhere else.
        check_cost: asked before a grammar is compiled; without it, a hostile one takes as long as it takes.

    Raises:
        RequestError: the grammar has a mistake, asks for what cannot be kept, or is too large; or the model has no
            end-of-sequence token.
    """
    return _compiler_of(tokenizer, vocab_size, tuple(eos_token_ids)).compile(spec, check_cost)


@final
class GrammarCompiler:
    """Compiles for one vocabulary. Safe to share between threads."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self._vocabulary = vocabulary
        self._kept: OrderedDict[GrammarSpec, GrammarConstraint] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, spec: GrammarSpec, check_cost: CheckCost | None = None) -> GrammarConstraint:
        """As `compile_grammar`."""
        with self._lock:
            constraint = self._kept.get(spec)
            if constraint is not None and not constraint.is_spent:
                self._kept.move_to_end(spec)
                return constraint
        if check_cost is not None:
            library_grammar(spec)  # what it refuses itself needs no trial
            check_cost(spec, self._vocabulary)
        constraint = compiled_constraint(spec, self._vocabulary)
        with self._lock:
            self._kept[spec] = constraint
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return constraint


def compiled_constraint(spec: GrammarSpec, vocabulary: TokenVocabulary) -> GrammarConstraint:
    """As `compile_grammar`, but keeps nothing."""
    constraint = GrammarConstraint(CompiledGrammar(spec, vocabulary, _build_matcher))
    constraint.check_beginning()
    return constraint


def _build_matcher(spec: GrammarSpec, vocabulary: TokenVocabulary) -> tuple[LLMatcher, float]:
    """A matcher, and the CPU time that it took, seconds."""
    names = {vocabulary.tokens[token_id].decode(errors="replace") for token_id in vocabulary.special_token_ids}
    text, tokenizer = library_grammar(spec, names), library_tokenizer(vocabulary)

    def build() -> tuple[LLMatcher, float]:
        start_s = time.thread_time()
        return LLMatcher(tokenizer, text, log_level=0, limits=_LIMITS), time.thread_time() - start_s

    matcher, cpu_s = on_deep_stack(build)
    if matcher.is_error():
        raise RequestError(f"the {spec.kind} cannot be used: {short_error(matcher)}")
    return matcher, cpu_s


_compilers: WeakKeyDictionary[Tokenizer, dict[tuple[int, tuple[int, ...]], GrammarCompiler]] = WeakKeyDictionary()
_compilers_lock = threading.Lock()


def _compiler_of(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> GrammarCompiler:
    with _compilers_lock:
        known = _compilers.setdefault(tokenizer, {})
        compiler = known.get((vocab_size, eos_token_ids))
        if compiler is None:
            compiler = GrammarCompiler(token_vocabulary(tokenizer, vocab_size, eos_token_ids))
            known[vocab_size, eos_token_ids] = compiler
        return compiler
