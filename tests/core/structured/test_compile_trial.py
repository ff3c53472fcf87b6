"""Grammars that would take minutes to compile are refused, and the child that tries them serves on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from tokenloom.errors import RequestError, TokenloomError
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.structured import CompileTrial, compile_grammar
from tokenloom.structured.vocabulary import TokenVocabulary, token_vocabulary
from tokenloom.text import Tokenizer

# Each of these would take hours.
COSTLY = {
    "lark": GrammarSpec.lark("start: T\nT: " + " & ".join(f"/(.|\\n)*a{index}(.|\\n)*/" for index in range(40))),
    "schema": GrammarSpec.json_schema(
        {"allOf": [{"properties": {"a": {"type": "string", "pattern": f"a{index}"}}} for index in range(40)]}
    ),
}
ORDINARY = GrammarSpec.regex("a+")


@pytest.fixture
def trial() -> Iterator[CompileTrial]:
    built = CompileTrial(limit_s=0.1)
    yield built
    built.close()


@pytest.fixture(scope="module")
def vocabulary(byte_level: Tokenizer) -> TokenVocabulary:
    return token_vocabulary(byte_level, byte_level.vocab_size, byte_level.eos_token_ids)


@pytest.mark.parametrize("kind", COSTLY)
def test_a_grammar_that_costs_too_much_is_refused(
    trial: CompileTrial, vocabulary: TokenVocabulary, byte_level: Tokenizer, kind: str
) -> None:
    for _ in range(2):
        with pytest.raises(RequestError, match=r"costs too much: .* more than the 0\.1 s of CPU time"):
            compile_grammar(COSTLY[kind], byte_level, byte_level.vocab_size, (2,), check_cost=trial.check)
        assert trial._child is None, "the second time, it is known"
    trial.check(ORDINARY, vocabulary)
    assert trial._child is not None


def test_the_child_is_used_again_by_right_and_wrong_grammars(trial: CompileTrial, vocabulary: TokenVocabulary) -> None:
    trial.check(ORDINARY, vocabulary)
    child = trial._child
    assert child is not None
    for spec in (ORDINARY, GrammarSpec.regex("("), GrammarSpec.json_schema({"nope": 1}), ORDINARY):
        trial.check(spec, vocabulary)
        assert trial._child is child


def test_a_grammar_that_is_kept_or_refused_by_its_text_is_not_tried(byte_level: Tokenizer) -> None:
    asked: list[GrammarSpec] = []

    def compiled(spec: GrammarSpec) -> None:
        vocab_size = byte_level.vocab_size
        compile_grammar(spec, byte_level, vocab_size, (2,), check_cost=lambda spec, _: asked.append(spec))

    spec = GrammarSpec.regex("a grammar of this test")
    for _ in range(2):
        compiled(spec)
    with pytest.raises(RequestError, match="'nope' is no keyword"):
        compiled(GrammarSpec.json_schema({"nope": 1}))
    assert asked == [spec]


def test_a_child_that_was_killed_is_replaced(trial: CompileTrial, vocabulary: TokenVocabulary) -> None:
    trial.check(ORDINARY, vocabulary)
    child = trial._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    trial.check(ORDINARY, vocabulary)
    assert trial._child is not child


def test_close_ends_a_check_and_every_later_one(vocabulary: TokenVocabulary) -> None:
    trial, errors = CompileTrial(limit_s=1000.0), list[BaseException]()
    trial.check(ORDINARY, vocabulary)

    def check() -> None:
        try:
            trial.check(COSTLY["lark"], vocabulary)
        except TokenloomError as error:
            errors.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    trial.close()
    thread.join()
    trial.close()
    assert len(errors) == 1
    with pytest.raises(TokenloomError, match="the engine ends"):
        trial.check(ORDINARY, vocabulary)
