"""Tools and structured output over HTTP; the openai client reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.core.server.served_app import ServedApp
from tokenloom.engine_process.local_client import LocalEngine
from tokenloom.server.model_text import ModelText, load_model_text
from tokenloom.text.chat_template import ChatTemplate

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{% for m in messages %}[{{ m.role }}]"
    "{{ m.content or '' }}{% for call in m.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}"
    "{% endfor %}"
)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}, "celsius": {"type": "boolean"}},
    "required": ["city", "celsius"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
TERSE = {"9": -100, "10": -100, "13": -100, "32": -100}
"""Random weights like white space too much, which JSON allows anywhere."""
ASKED: dict[str, Any] = {
    "messages": MESSAGES,
    "tools": TOOLS,
    "max_tokens": 200,
    "ignore_eos": False,
    "temperature": 1,
    "logit_bias": TERSE,
}


@pytest.fixture(scope="module")
def app(served_engine: LocalEngine) -> Iterator[ServedApp]:
    def load_text(path: str) -> ModelText:
        return ModelText(load_model_text(path).tokenizer, ChatTemplate(TEMPLATE))

    with ServedApp(served_engine, served_model_names=("tiny",), tool_parser="hermes", load_text=load_text) as served:
        yield served


def check_call(call: dict[str, Any]) -> None:
    """A call of a tool that was offered, with the arguments that it takes."""
    assert re.fullmatch(r"call_\w+", call["id"])
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        assert arguments["city"] in ("Rome", "Paris")
        assert isinstance(arguments["celsius"], bool)
    else:
        assert (call["function"]["name"], arguments) == ("now", {})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_that_must_be_made_is_made_streamed_or_not(app: ServedApp, choice: Any, seed: int) -> None:
    body = {**ASKED, "tool_choice": choice, "seed": seed, "parallel_tool_calls": False}
    whole = app.chat(**body).json["choices"][0]
    (call,) = whole["message"]["tool_calls"]
    check_call(call)
    assert choice == "required" or call["function"]["name"] == "weather"
    assert whole["message"]["content"] is None
    assert whole["finish_reason"] == "tool_calls"
    chunks = app.chat(**body, stream=True).chunks
    parts = [p["tool_calls"][0] for chunk in chunks for c in chunk["choices"] if "tool_calls" in (p := c["delta"])]
    assert parts[0]["function"]["name"] == call["function"]["name"]
    assert "".join(part["function"].get("arguments", "") for part in parts) == call["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_every_choice_calls(app: ServedApp) -> None:
    choices = app.chat(**ASKED, tool_choice=NAMED, n=4, seed=1).json["choices"]
    assert len(choices) == 4
    for choice in choices:
        check_call(choice["message"]["tool_calls"][0])


def test_the_openai_client_reads_calls_and_sends_them_back(app: ServedApp) -> None:
    with OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as client:
        options: Any = {"model": "tiny", "tools": TOOLS, "temperature": 0, "max_tokens": 99, "logit_bias": TERSE}
        message = (
            client.chat.completions.create(messages=MESSAGES, tool_choice="required", **options).choices[0].message
        )
        assert message.tool_calls is not None
        call: Any = message.tool_calls[0]
        check_call(call.model_dump())
        history = [*MESSAGES, message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        assert (
            client.chat.completions.create(messages=history, tool_choice="none", **options).choices[0].message.content
        )
        with client.chat.completions.stream(messages=MESSAGES, tool_choice=NAMED, **options) as stream:
            done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        assert json.loads(done[0].arguments)["city"] in ("Rome", "Paris")


def test_tools_that_may_be_called_leave_text_alone(app: ServedApp) -> None:
    answer = app.chat(**{**ASKED, "max_tokens": 12, "ignore_eos": True}, seed=3).json["choices"][0]
    plain = app.post("/tokenize", {"messages": MESSAGES, "tools": TOOLS}).json["tokens"]
    assert bytes(plain).decode() == "weather now [user]Hi"
    text = app.complete(prompt=plain, max_tokens=12, temperature=1, seed=3, logit_bias=TERSE).json["choices"][0]["text"]
    assert answer["message"]["content"].strip() == text.strip()
    assert "tool_calls" not in answer["message"]


def test_tools_that_may_not_be_called_are_not_shown(app: ServedApp) -> None:
    with_tools = app.chat(**{**ASKED, "max_tokens": 1}, tool_choice="none", return_token_ids=True).json
    assert bytes(with_tools["prompt_token_ids"]).decode() == "[user]Hi"


def test_an_empty_list_of_calls_goes_with_null_as_content(app: ServedApp) -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": []}, {"role": "user", "content": "Hi"}]
    assert app.chat(messages=messages, max_tokens=1).status == 200


def test_arguments_of_earlier_calls_reach_the_template_as_objects(app: ServedApp) -> None:
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    ]
    answer = app.chat(messages=messages, max_tokens=1, return_token_ids=True).json
    assert bytes(answer["prompt_token_ids"]).decode() == "[assistant]Rome"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools[0].function.parameters",
        ),
    ],
    ids=["unknown", "no choice", "double", "with a format", "no object"],
)
def test_tools_that_make_no_sense_are_refused(app: ServedApp, fields: dict[str, Any], param: str) -> None:
    answer = app.chat(**{**ASKED, "tool_choice": "required", **fields})
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            r"\{\s*\"ok\"[^x]*",
        ),
        ({"regex": "[ab]{3}c"}, "[ab]{3}c"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"structured_outputs": {"grammar": 'start: "a" "b"'}}, "ab"),
    ],
    ids=["schema", "regex", "choice", "grammar"],
)
def test_structured_output_holds_streamed_or_not(api: ServedApp, fields: dict[str, Any], pattern: str) -> None:
    body = {"max_tokens": 100, "ignore_eos": False, "temperature": 1, "seed": 1, "logit_bias": TERSE, **fields}
    for path in (api.chat, lambda **fields: api.complete(prompt="x", **fields)):
        whole = path(**body).json["choices"][0]
        text = whole["message"]["content"] if "message" in whole else whole["text"]
        assert re.fullmatch(pattern, text), text
        assert whole["finish_reason"] == "stop"
        deltas = [choice for chunk in path(**body, stream=True).chunks for choice in chunk["choices"]]
        assert "".join(d["delta"].get("content", "") if "delta" in d else d["text"] for d in deltas) == text


@pytest.mark.parametrize("fields", [{"regex": "("}, {"grammar": "nonsense"}, {"guided_json": {"type": "nothing"}}])
def test_grammars_that_do_not_compile_are_refused(api: ServedApp, fields: dict[str, Any]) -> None:
    for stream in (False, True):
        answer = api.complete(prompt="x", stream=stream, **fields)
        assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
