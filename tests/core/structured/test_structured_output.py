"""Structured output through `LLM`: what comes out matches, whatever else is asked of the request."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

from tests.core.structured.schemas import schemas
from tests.core.structured.walking import compiled, walk
from tokenloom import LLM, GrammarSpec, SamplingParams
from tokenloom.errors import RequestError
from tokenloom.request_factory import RequestTraits
from tokenloom.text import Tokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=120)
SAMPLED = SamplingParams(temperature=1.0, seed=11, max_tokens=120)
COMPACT = {"x-guidance": {"whitespace_flexible": False}}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
COMPACT_PERSON = GrammarSpec.json_schema(PERSON | COMPACT)


def validate(text: str, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(json.loads(text))


@settings(max_examples=60, deadline=None)
@given(schema=schemas())
def test_random_legal_tokens_make_what_the_schema_allows(schema: dict[str, Any], byte_level: Tokenizer) -> None:
    for number, each in enumerate((schema | COMPACT, schema)):
        cursor = compiled(GrammarSpec.json_schema(each), byte_level).fork()
        token_ids = walk(cursor, byte_level, random.Random(number), 300)
        if cursor.is_terminated:
            validate(byte_level.decode(token_ids), schema)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=schemas())
def test_replies_match_random_schemas(schema: dict[str, Any], build_llm: Callable[..., LLM]) -> None:
    """Several choices, with drafts, of a model whose weights are random."""
    llm = build_llm("spec_decode=ngram")
    params = SAMPLED.with_changes(n=3, max_tokens=80)
    reply = llm.generate("{", params, structured_outputs=GrammarSpec.json_schema(schema | COMPACT))[0]
    for choice in reply.outputs:
        assert choice.finish_reason in ("stop", "length"), choice.error
        if choice.finish_reason == "stop":
            validate(choice.text, schema)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SAMPLED.with_changes(n=3)], ids=["greedy", "sampled", "n=3"])
def test_speculation_changes_nothing(params: SamplingParams, build_llm: Callable[..., LLM]) -> None:
    llm, plain = build_llm("spec_decode=ngram", "spec_decode.min_n=1"), build_llm("cache=none")
    before = llm.engine.stats.num_accepted_tokens
    prompts = ["tags: red green blue red green", '{"name":"a","age":1,"tags":["red","red","red"]}']
    specs = [COMPACT_PERSON, GrammarSpec.regex("(red|green|blue)( (red|green|blue)){9}")]
    expected = plain.generate(prompts, params, structured_outputs=specs)
    found = llm.generate(prompts, params, structured_outputs=specs)
    assert [[c.token_ids for c in r.outputs] for r in found] == [[c.token_ids for c in r.outputs] for r in expected]
    assert llm.engine.stats.num_accepted_tokens > before
    for choice in found[0].outputs:
        assert choice.finish_reason == "stop"
        validate(choice.text, PERSON)
    for choice in found[1].outputs:
        assert re.fullmatch(r"\w+( \w+){9}", choice.text)


def test_rejection_sampling_keeps_to_the_grammar(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm("spec_decode=ngram", "spec_decode.min_n=1", "spec_decode.verifier=rejection")
    for choice in llm.generate("red", SAMPLED.with_changes(n=6), structured_outputs=COMPACT_PERSON)[0].outputs:
        assert choice.finish_reason == "stop"
        validate(choice.text, PERSON)


def test_preempted_requests_take_up_their_place_again(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm("cache.num_blocks=14", "scheduler.max_num_seqs=6", "spec_decode=ngram", "spec_decode.min_n=1")
    params = SAMPLED.with_changes(n=6)
    expected = build_llm("cache=none").generate("preempt me", params, structured_outputs=COMPACT_PERSON)[0]
    found = llm.generate("preempt me", params, structured_outputs=COMPACT_PERSON)[0]
    assert llm.engine.stats.num_preemptions > 0
    assert [choice.token_ids for choice in found.outputs] == [choice.token_ids for choice in expected.outputs]


def test_a_grammar_that_is_complete_ends_the_reply(build_llm: Callable[..., LLM]) -> None:
    """The end-of-sequence token is the only legal one then; asking to ignore it does not help."""
    llm = build_llm()
    for params in (GREEDY, SAMPLED, GREEDY.with_changes(ignore_eos=True)):
        choice = llm.generate("?", params, structured_outputs=GrammarSpec.choice(["yes", "no"]))[0].outputs[0]
        assert (choice.finish_reason, choice.stop_reason) == ("stop", 2)
        assert choice.text in ("yes", "no")


def test_stop_and_cap_inside_a_structure_end_it_early(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm("spec_decode=ngram", "spec_decode.min_n=1")
    whole = llm.generate("red", GREEDY, structured_outputs=COMPACT_PERSON)[0].outputs[0]
    cut = llm.generate("red", GREEDY.with_changes(max_tokens=5), structured_outputs=COMPACT_PERSON)[0].outputs[0]
    assert (cut.finish_reason, cut.token_ids) == ("length", whole.token_ids[:5])
    stopped = llm.generate("red", GREEDY.with_changes(stop='"age"'), structured_outputs=COMPACT_PERSON)[0].outputs[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", '"age"')
    assert stopped.text == whole.text[: whole.text.index('"age"')]
    assert llm.engine.kv_usage()["active"] == 0


def test_what_contradicts_the_grammar_fails_its_request_only(build_llm: Callable[..., LLM]) -> None:
    params = [GREEDY.with_changes(min_tokens=60), GREEDY]
    failed, other = build_llm().generate(["a", "b"], params, structured_outputs=GrammarSpec.choice(["yes"]))
    assert failed.outputs[0].finish_reason == "error"
    assert "every token is forbidden by bad_words or min_tokens and the logits constraint" in str(
        failed.outputs[0].error
    )
    assert other.outputs[0].text == "yes"


def test_each_prompt_can_have_its_own_structure_or_none(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    free = llm.generate("b", GREEDY)[0].outputs[0].token_ids
    specs = [GrammarSpec.regex("a{3}"), None, GrammarSpec.json_object()]
    outputs = llm.generate(["a", "b", "c"], GREEDY.with_changes(max_tokens=60), structured_outputs=specs)
    assert outputs[0].outputs[0].text == "aaa"
    assert outputs[1].outputs[0].token_ids == free[:60]
    assert outputs[2].outputs[0].text.startswith("{")


def test_chat_and_stream_take_structures(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    messages = [{"role": "user", "content": "Which?"}]
    spec = GrammarSpec.choice(["left", "right"])
    assert llm.chat(messages, GREEDY, structured_outputs=spec)[0].outputs[0].text in ("left", "right")
    assert "".join(delta.text for delta in llm.stream(messages, GREEDY, structured_outputs=spec)) in ("left", "right")


def test_misuse_is_refused_before_anything_runs(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    spec = GrammarSpec.regex("a")
    with pytest.raises(RequestError, match="regex cannot be used"):
        llm.generate("a", GREEDY, structured_outputs=GrammarSpec.regex("("))
    with pytest.raises(RequestError, match="structured_outputs has 1 entries for 2 prompts"):
        llm.generate(["a", "b"], GREEDY, structured_outputs=[spec])
    with pytest.raises(RequestError, match="structured_outputs must be GrammarSpec"):
        llm.generate("a", GREEDY, structured_outputs="a")  # type: ignore[arg-type]
    traits = RequestTraits(constraint=compiled(spec, llm.tokenizer))
    with pytest.raises(RequestError, match="not both"):
        llm.generate("a", GREEDY, structured_outputs=spec, traits=traits)
    assert not llm.engine.has_work()


@pytest.mark.slow
def test_the_default_model_answers_in_json() -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 30},
            "population": {"type": "integer", "minimum": 0, "maximum": 50_000_000},
        },
        "required": ["city", "population"],
        "additionalProperties": False,
    }
    messages = [{"role": "user", "content": "Name the capital of France and how many people live there, as JSON."}]
    with LLM(show_progress=False) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=80)
        choice = llm.chat(messages, params, structured_outputs=GrammarSpec.json_schema(schema))[0].outputs[0]
    assert choice.finish_reason == "stop"
    validate(choice.text, schema)
