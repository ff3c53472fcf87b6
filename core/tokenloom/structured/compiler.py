"""Compiles grammars against a model's vocabulary, within limits, and keeps those of late."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import final
from weakref import WeakKeyDictionary

from llguidance import LLMatcher, LLParserLimits

from tokenloom.errors import RequestError
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.structured.constraint import CompiledGrammar, GrammarConstraint, short_error
from tokenloom.structured.deep_stack import on_deep_stack
from tokenloom.structured.grammar_text import library_grammar
from tokenloom.structured.vocabulary import TokenVocabulary, library_tokenizer, token_vocabulary
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["GrammarCompiler", "compile_grammar"]

_MAX_KEPT = 16
# A lexer state takes some 2 KB. A row has 4 items for each optional key of an object, and work that grows with the cube
# of its items where the grammar is ambiguous, which the cursor's own limit ends. The others are the library's own.
_LIMITS = LLParserLimits(max_lexer_states=20_000, max_items_in_row=1_000, verbose_errors=False)


def compile_grammar(
    spec: GrammarSpec, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]
) -> GrammarConstraint:
    """Compiles `spec`, or finds it among the last ones that were compiled for this tokenizer.

    Args:
        spec: what the text must match.
        tokenizer: of the model.
        vocab_size: V, rows of the model's logits; those without a token are never legal.
        eos_token_ids: tokens that end a text: all of them are legal where the grammar may end, and nowhere else.

    Raises:
        RequestError: the grammar has a mistake, asks for what cannot be kept, or is too large; or the model has no
            end-of-sequence token.
    """
    return _compiler_of(tokenizer, vocab_size, tuple(eos_token_ids)).compile(spec)


@final
class GrammarCompiler:
    """Compiles for one vocabulary. Safe to share between threads."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self._vocabulary = vocabulary
        self._kept: OrderedDict[GrammarSpec, GrammarConstraint] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, spec: GrammarSpec) -> GrammarConstraint:
        """As `compile_grammar`."""
        with self._lock:
            constraint = self._kept.get(spec)
            if constraint is not None:
                self._kept.move_to_end(spec)
                return constraint
        constraint = GrammarConstraint(CompiledGrammar(spec, self._vocabulary, _build_matcher))
        constraint.check_beginning()
        with self._lock:
            self._kept[spec] = constraint
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return constraint


def _build_matcher(spec: GrammarSpec, vocabulary: TokenVocabulary) -> LLMatcher:
    names = {vocabulary.tokens[token_id].decode(errors="replace") for token_id in vocabulary.special_token_ids}
    text, tokenizer = library_grammar(spec, names), library_tokenizer(vocabulary)
    matcher = on_deep_stack(lambda: LLMatcher(tokenizer, text, log_level=0, limits=_LIMITS))
    if matcher.is_error():
        raise RequestError(f"the {spec.kind} cannot be used: {short_error(matcher)}")
    return matcher


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
