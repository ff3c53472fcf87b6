"""What compiles, what is refused and why, and what a hostile grammar costs."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits

from tests.core.structured.walking import compiled, legal_ids, spelled, takes, walk
from tokenloom.errors import RequestError
from tokenloom.grammar_spec import Thoughts
from tokenloom.structured import GrammarCompiler, GrammarSpec, compile_grammar, compiler, constraint
from tokenloom.structured.constraint import CompiledGrammar
from tokenloom.structured.schema_check import MAX_OPTIONAL_KEYS
from tokenloom.structured.vocabulary import token_vocabulary
from tokenloom.text import Tokenizer


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        (GrammarSpec.json_object(), ['{"a": [1, null, {}]}', "{}"], ["[]", "1", "{} ", '{"a"}']),
        (GrammarSpec.regex(r"\d{3}-\d+"), ["123-4"], ["123-", "a"]),
        (GrammarSpec.regex(r"^a$"), ["a"], ["", "^a$"]),
        (GrammarSpec.regex("a/b|\nc"), ["a/b", "\nc"], ["ab", "c"]),
        (GrammarSpec.regex("(a|)"), ["a", ""], ["b"]),
        (GrammarSpec.choice(["ab", "abc", "ab"]), ["ab", "abc"], ["a", "abcd"]),
        (GrammarSpec.lark('start: "(" start ")" | /x+/'), ["((xx))", "x"], ["((x)", "()"]),
        (GrammarSpec.lark('start: %json {"const": "//"} "!"  // %json'), ['"//"!'], ['"//"']),
        (GrammarSpec.json_schema("true"), ["1", '["a"]'], ["x"]),
        (GrammarSpec.json_schema({"type": "string", "pattern": "b"}), ['"abc"'], ['"ac"']),
        (GrammarSpec.json_schema({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}), ["null"], ["0"]),
    ],
)
def test_a_grammar_takes_the_texts_that_it_means(
    spec: GrammarSpec, right: list[str], wrong: list[str], byte_level: Tokenizer
) -> None:
    constraint = compiled(spec, byte_level)
    assert [text for text in right if not takes(constraint, text, byte_level)] == []
    assert [text for text in wrong if takes(constraint, text, byte_level)] == []


@settings(max_examples=40, deadline=None)
@given(options=st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), min_size=1, max_size=5))
def test_a_choice_takes_any_characters(options: list[str], byte_level: Tokenizer) -> None:
    constraint = compiled(GrammarSpec.choice(options), byte_level)
    assert all(takes(constraint, option, byte_level) for option in options)
    assert all(takes(constraint, option + "x", byte_level) == (option + "x" in options) for option in options)


def test_white_space_in_json_is_free_but_not_endless(byte_level: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    constraint = compiled(GrammarSpec.json_schema(schema), byte_level)
    assert takes(constraint, '{\n    "a": 1\n}', byte_level)
    assert takes(constraint, '{"a":1}', byte_level)
    assert not takes(constraint, "{" + " " * 41 + '"a":1}', byte_level)
    compact = compiled(GrammarSpec.json_schema(schema | {"x-guidance": {"whitespace_flexible": False}}), byte_level)
    assert takes(compact, '{"a":1}', byte_level)
    assert not takes(compact, '{"a": 1}', byte_level)


THINKING = [
    GrammarSpec.json_schema({"const": {"a": 1}}),
    GrammarSpec.regex(r'\{"a": 1\}'),
    GrammarSpec.choice(['{"a": 1}']),
    GrammarSpec.lark('start: "{" start "}" | "\\"a\\": 1"'),
]


@pytest.mark.parametrize("spec", THINKING, ids=lambda spec: spec.kind)
def test_an_answer_may_follow_thoughts(spec: GrammarSpec, byte_level: Tokenizer) -> None:
    answer = '{"a": 1}'
    begun = compiled(replace(spec, thoughts="begun"), byte_level)
    for right in ("</think>", "so {\n <think> </thin> it is.</think>\n\n"):
        assert takes(begun, right + answer, byte_level)
    for wrong in ("", "a</think>b"):
        assert not takes(begun, wrong + answer, byte_level)
    possible = compiled(replace(spec, thoughts="possible"), byte_level)
    for right in ("", "<think>hm {</think>\n", "<think></think>"):
        assert takes(possible, right + answer, byte_level)
    for wrong in ("hm</think>", "<think>", "<think>hm"):
        assert not takes(possible, wrong + answer, byte_level)


def test_marks_of_thoughts_may_be_special_tokens(byte_level: Tokenizer) -> None:
    vocabulary = token_vocabulary(byte_level, byte_level.vocab_size, (2,))
    tokens = (b"<think>", b"</think>", *vocabulary.tokens[2:])
    compiler = GrammarCompiler(replace(vocabulary, tokens=tokens, digest="thinking"))
    cursor = compiler.compile(GrammarSpec("choice", '["b"]', "possible")).fork()
    text, answer = spelled("hm", byte_level), spelled("b", byte_level)
    assert legal_ids(cursor, byte_level) == [0, *answer]
    assert all(cursor.advance(token_id) for token_id in (0, *text, 1, *answer, 2))
    assert cursor.is_terminated


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (GrammarSpec.regex("a(?=b)"), "regex cannot be used.*look-ahead.*not supported"),
        (GrammarSpec.regex(r"(a)\1"), "backreferences are not supported"),
        (GrammarSpec.regex("["), "unclosed character class"),
        (GrammarSpec.regex("a$b"), "regex cannot be used"),
        (GrammarSpec.regex(""), "the regex is empty"),
        (GrammarSpec.regex("\ud800"), "half of a surrogate pair"),
        (GrammarSpec.lark("start: nothing"), "lark cannot be used.*nothing"),
        (GrammarSpec.lark("start: start"), "lark allows no text at all"),
        (GrammarSpec.lark("start: <|nope|>"), "unknown special token"),
        (GrammarSpec.lark(""), "lark cannot be used"),
        (GrammarSpec.lark('{"grammars": [{"json_schema": {"type": "string"}}]}'), "lark cannot be used"),
        (GrammarSpec.lark("start: %json [1"), "no JSON schema behind %json"),
        (GrammarSpec.lark('start: %json {"typ": "null"}'), "'typ' is no keyword.*Did you mean 'type'"),
        (GrammarSpec("choice", '["a", 1]'), "a choice is a list of strings"),
        (GrammarSpec("choice", "[]"), "a choice is a list of strings"),
        (GrammarSpec("choice", "{"), "the choice is no JSON"),
        (GrammarSpec.choice(["a", ""]), "an empty string cannot be a choice"),
        (GrammarSpec("json_schema", "{bad"), "the json_schema is no JSON"),
        (GrammarSpec("json_schema", '{"const": NaN}'), "NaN is no JSON number"),
        (GrammarSpec("json_schema", '{"maximum": 1e999}'), "1e999 is out of range"),
        (GrammarSpec("json_schema", "[1]"), "a JSON schema is an object"),
        (GrammarSpec("json_schema", "false"), "a JSON schema is an object or true"),
        (GrammarSpec.json_schema({"type": "strin"}), "Invalid type: strin"),
        (GrammarSpec.json_schema({"$ref": "https://example.com/x.json"}), "does not fetch"),
        (GrammarSpec.json_schema({"$ref": "#/$defs/x"}), "does not exist"),
        (GrammarSpec.json_schema({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}), "allows no text"),
        (GrammarSpec.json_schema({"type": "integer", "minimum": 3, "maximum": 1}), "minimum .3. is greater"),
        (GrammarSpec.json_schema({"x-guidance": 1}), "x-guidance is an object"),
    ],
)
def test_mistakes_are_named(spec: GrammarSpec, problem: str, byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match=f"(?s){problem}"):
        compiled(spec, byte_level)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": True},
        {"type": "array", "contains": {"type": "string"}},
        {"type": "array", "prefixItems": [{}], "unevaluatedItems": False},
        {"type": "object", "propertyNames": {"pattern": "^a"}},
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {"type": "object", "unevaluatedProperties": False},
        {"not": {"type": "string"}},
        {"if": {"type": "string"}, "then": {"minLength": 3}},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"type": "string", "format": "binary"},
        {"type": "string", "pattern": "a(?!b)"},
        {"$dynamicRef": "#a"},
        {"properties": {"deep": {"items": {"uniqueItems": True}}}},
    ],
)
def test_what_a_schema_asks_for_is_kept_or_refused(schema: dict[str, Any], byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="json_schema cannot be used"):
        compiled(GrammarSpec.json_schema(schema), byte_level)


def test_a_model_that_cannot_end_a_text_is_told(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="needs an end-of-sequence token"):
        compile_grammar(GrammarSpec.json_object(), byte_level, byte_level.vocab_size, ())


def test_equal_grammars_are_compiled_once_and_few_are_kept(byte_level: Tokenizer) -> None:
    first = compiled(GrammarSpec.regex("once"), byte_level)
    assert compiled(GrammarSpec.regex("once"), byte_level) is first
    assert compiled(GrammarSpec.choice(["once"]), byte_level) is not first
    for number in range(40):
        compiled(GrammarSpec.regex(f"other{number}"), byte_level)
    assert compiled(GrammarSpec.regex("once"), byte_level) is not first


def _chain(length: int, link: str) -> dict[str, Any]:
    def entry(number: int) -> dict[str, Any]:
        target = {"$ref": f"#/$defs/a{number}"}
        return {
            "ref": target,
            "object": {"type": "object", "properties": {"x": target}},
            "all": {"allOf": [target, target]},
            "any": {"anyOf": [target, {"type": "null"}]},
        }[link]

    defs = {f"a{number}": entry(number + 1) for number in range(length)} | {f"a{length}": {"type": "integer"}}
    return {"$defs": defs, "$ref": "#/$defs/a0"}


def _nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


HOSTILE = {
    "long": GrammarSpec.json_schema({"const": "x" * 70_000}),
    "nested": GrammarSpec("json_schema", _nested(150)),
    "nested beyond Python": GrammarSpec("json_schema", _nested(6_000)),
    "parentheses": GrammarSpec.regex("(" * 2_000 + "a" + ")" * 2_000),
    "optional characters": GrammarSpec.regex("a?" * 2_000),
    "long regex": GrammarSpec.regex("a?" * 20_000),
    "long regex in lark": GrammarSpec.lark(f"start: /{'a?' * 20_000}/"),
    "long pattern": GrammarSpec.json_schema({"type": "string", "pattern": "a?" * 20_000}),
    "powers": GrammarSpec.regex("((a{1,1000}){1,1000}){1,1000}"),
    "many states": GrammarSpec.regex("(.{1,100}a){1,100}"),
    "far look-back": GrammarSpec.regex("(a|b)*a(a|b){200}"),
    "remainders": GrammarSpec.json_schema({"type": "integer", "multipleOf": 999_983}),
    "common multiple": GrammarSpec.json_schema(
        {"allOf": [{"type": "integer", "multipleOf": number} for number in (997, 991, 983)]}
    ),
    "remainders in lark": GrammarSpec.lark('start: %json {"type": "integer", "multipleOf": 999983}'),
    "patterns that meet": GrammarSpec.json_schema(
        {"allOf": [{"type": "string", "pattern": f"(.*{char}){{8}}"} for char in "abcdefgh"]}
    ),
    "huge bounds": GrammarSpec.json_schema({"type": "number", "minimum": -1e308, "maximum": 1e308}),
    "huge array": GrammarSpec.json_schema({"type": "array", "items": {"type": "null"}, "minItems": 10**9}),
    "doubling": GrammarSpec.lark(
        "start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(40)) + 'r40: "a"?'
    ),
    "repetition": GrammarSpec.lark('start: ((a{1000}){1000}){1000}\na: "x" | "y"'),
    "ambiguity": GrammarSpec.lark('start: s\ns: s s | "a" | "aa" | "a" s "a"'),
    "ambiguous letters": GrammarSpec.lark("start: s\ns: s s | /[a-z ]/"),
    "rule chain": GrammarSpec.lark("start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(4_000)) + 'r4000: "a"'),
    "many properties": GrammarSpec.json_schema(
        {"type": "object", "properties": {f"key{number}": {} for number in range(2_000)}}
    ),
    **{f"chain {link}": GrammarSpec.json_schema(_chain(1_200, link)) for link in ("ref", "object", "all", "any")},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_or_cheap(name: str, byte_level: Tokenizer) -> None:
    """It neither ends the process (native stacks are finite) nor stops it; CPU time, of this process only."""
    start_s = time.process_time()
    with contextlib.suppress(RequestError):
        cursor, rng = compiled(HOSTILE[name], byte_level).fork(), random.Random(1)
        for _ in range(10):
            legal = legal_ids(cursor, byte_level)
            if not legal or not cursor.advance(rng.choice(legal)) or cursor.is_terminated:
                break
    assert time.process_time() - start_s < 3.0


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("long", "has 70.* characters, more than the 65536"),
        ("long regex", "has 40000 characters, more than the 4096"),
        ("long regex in lark", "a regex in the grammar is longer than the 4096"),
        ("long pattern", "schema: a pattern is longer than the 4096"),
        ("nested", "recursion limit"),
        ("nested beyond Python", "json_schema is no JSON: .*recursion"),
        ("remainders", "multipleOf 999983 costs too much"),
        ("common multiple", "multipleOf .*costs too much.*leave multipleOf out"),
        ("remainders in lark", "multipleOf 999983 costs too much"),
    ],
)
def test_limits_are_named(name: str, problem: str, byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match=f"(?s){problem}") as caught:
        compiled(HOSTILE[name], byte_level)
    assert len(str(caught.value)) < 1000


def _wide(num_keys: int, *required: int) -> dict[str, Any]:
    names = [f"key{number}" for number in range(num_keys)]
    return {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "required": [names[number] for number in required],
    }


@pytest.mark.parametrize("thoughts", ["none", "possible"])
@pytest.mark.parametrize("frame", ["alone", "array", "nested", "choice"])
def test_an_object_may_have_as_many_optional_keys_as_are_allowed(
    frame: str, thoughts: Thoughts, byte_level: Tokenizer
) -> None:
    wide, text = _wide(MAX_OPTIONAL_KEYS), '{"key0": 1, "key3": 2, "key249": 3}'
    schema, text = {
        "alone": (wide, text),
        "array": ({"type": "array", "items": wide}, f"[{text}, {text}, {{}}]"),
        "nested": ({"type": "object", "properties": {"a": wide}, "required": ["a"]}, f'{{"a": {text}}}'),
        "choice": ({"anyOf": [{"type": "string"}, wide]}, text),
    }[frame]
    spec = replace(GrammarSpec.json_schema(schema), thoughts=thoughts)
    cursor = compiled(spec, byte_level).fork()
    for token_id in spelled(text, byte_level):
        assert token_id in legal_ids(cursor, byte_level), cursor.failure
        assert cursor.advance(token_id)


def test_more_optional_keys_in_a_row_are_refused_by_their_place(byte_level: Tokenizer) -> None:
    for schema, where in ((_wide(251), "schema"), ({"items": _wide(300, 10)}, r"schema\.items")):
        with pytest.raises(RequestError, match=f"^{where}: 2[58]. optional keys follow each other.*at most 250"):
            compiled(GrammarSpec.json_schema(schema), byte_level)
    halves = compiled(GrammarSpec.json_schema(_wide(501, 250)), byte_level)
    assert takes(halves, '{"key3": 1, "key250": 1, "key500": 2}', byte_level)
    compiled(GrammarSpec.json_schema(_wide(300, *range(300))), byte_level)


STATEFUL = GrammarSpec.regex("(.{1,100}a){1,100}")


def _limited(monkeypatch: pytest.MonkeyPatch, num_states: int, tokenizer: Tokenizer) -> Callable[[], GrammarCompiler]:
    """Makes compilers whose grammars have no more lexer states than that."""
    monkeypatch.setattr(compiler, "_LIMITS", LLParserLimits(max_lexer_states=num_states, verbose_errors=False))
    vocabulary = token_vocabulary(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    return lambda: GrammarCompiler(vocabulary)


def test_a_request_does_not_use_up_the_limits_of_others(byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cursors of one grammar share the states of its lexer, whose number is limited."""
    new_compiler = _limited(monkeypatch, 1_000, byte_level)

    def outcome(grammars: GrammarCompiler, seed: int) -> list[int]:
        """The first tokens, as far as any are legal."""
        cursor, rng, token_ids = grammars.compile(STATEFUL).fork(), random.Random(seed), list[int]()
        while not cursor.is_terminated and (legal := legal_ids(cursor, byte_level)) and len(token_ids) < 60:
            token_ids.append(rng.choice(legal))
            assert cursor.advance(token_ids[-1]), "a legal token was refused"
        return token_ids

    renewals: list[CompiledGrammar] = []
    renew = CompiledGrammar.renew
    monkeypatch.setattr(CompiledGrammar, "renew", lambda grammar: (renewals.append(grammar), renew(grammar)))
    shared = new_compiler()
    together = [outcome(shared, seed) for seed in range(4)]
    assert renewals, "the limit was not met"
    assert together == [outcome(new_compiler(), seed) for seed in range(4)]


def test_a_grammar_that_compiles_slowly_is_not_compiled_while_others_wait(
    byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursors that run when the shared limit is met end; whoever comes then has the grammar compiled anew."""
    grammars = _limited(monkeypatch, 300, byte_level)()
    monkeypatch.setattr(constraint, "_MOST_RENEWAL_S", -1.0)
    first, rng = grammars.compile(STATEFUL), random.Random(0)
    cursor, other = first.fork(), first.fork()
    before = legal_ids(other, byte_level)
    while legal := legal_ids(cursor, byte_level):
        assert grammars.compile(STATEFUL) is first
        assert cursor.advance(rng.choice(legal))
    assert "too many states" in cursor.failure
    assert other.failure or not legal_ids(other, byte_level)
    again = grammars.compile(STATEFUL)
    assert again is not first
    assert legal_ids(again.fork(), byte_level) == before


def test_a_limit_that_is_met_again_and_again_allows_nothing(
    byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the request with an error, if it is met by its own tokens, and does no harm behind drafts."""
    cursor = _limited(monkeypatch, 300, byte_level)().compile(STATEFUL).fork()
    before, num_advanced, rng = legal_ids(cursor, byte_level), 0, random.Random(0)
    while (legal := legal_ids(cursor, byte_level)) and num_advanced < 200:
        assert cursor.advance(rng.choice(legal))
        num_advanced += 1
    assert not legal, "the limit was not met"
    assert not cursor.is_terminated
    cursor.rollback(num_advanced)
    assert legal_ids(cursor, byte_level) == before


def test_specs_are_checked_when_they_are_made() -> None:
    with pytest.raises(RequestError, match=r"one of json_object, .*got 'xml'"):
        GrammarSpec("xml")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="regex is given as text"):
        GrammarSpec.regex(3)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="cannot be written as JSON"):
        GrammarSpec.json_schema({"const": object()})
    assert GrammarSpec.choice("yes") == GrammarSpec.choice(["yes"])
    assert json.loads(GrammarSpec.json_schema({"const": "é"}).text) == {"const": "é"}


def test_long_walks_end(tokenizer: Tokenizer) -> None:
    schema = {
        "type": "array",
        "items": {"enum": ["x", None]},
        "maxItems": 3,
        "x-guidance": {"whitespace_flexible": False},
    }
    for seed in range(5):
        cursor = compiled(GrammarSpec.json_schema(schema), tokenizer).fork()
        token_ids = walk(cursor, tokenizer, random.Random(seed), 60)
        assert cursor.is_terminated
        assert len(json.loads(tokenizer.decode(token_ids))) <= 3
