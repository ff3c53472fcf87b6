"""Bodies made to keep a server busy: each is refused, and none takes long, however large bodies may be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from tests.core.server.served_app import ServedApp
from tokenloom.engine_process.local_client import LocalEngine
from tokenloom.errors import RequestError
from tokenloom.sampling_params import SamplingParams
from tokenloom.server.value_limits import check_weight


@pytest.fixture(scope="module")
def api(served_engine: LocalEngine) -> Iterator[ServedApp]:
    with ServedApp(served_engine, served_model_names=("tiny",), max_body_bytes=64 * 2**20) as app:
        yield app


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


HOSTILE: dict[str, Callable[[], dict[str, Any]]] = {
    "strange fields": lambda: {f"temperatur{i}": 1 for i in range(100_000)},
    "a long name": lambda: {"temperatur" * 100_000: 1},
    "many token ids": lambda: {"allowed_token_ids": [1] * 1_000_000},
    "many strings for token ids": lambda: {"allowed_token_ids": ["x"] * 1_000_000},
    "many strings for biases": lambda: {"logit_bias": {str(i): "x" for i in range(300_000)}},
    "many processors": lambda: {"logits_processors": {f"p{i}": {} for i in range(200_000)}},
    "wrong processors": lambda: {"logits_processors": {f"p{i}": 1 for i in range(200_000)}},
    "wide processors": lambda: {"logits_processors": {"no_repeat_ngram": {"size": [[]] * 300}}},
    "long processors": lambda: {"logits_processors": {"no_repeat_ngram": {"x" * 5000: 1}}},
    "many stops": lambda: {"stop": ["x"] * 1_000_000},
    "many bad words": lambda: {"bad_words": [1] * 1_000_000},
    "many choices": lambda: {"guided_choice": ["x"] * 1_000_000},
    "many numbers for choices": lambda: {"guided_choice": [1] * 1_000_000},
    "a wide schema": lambda: {"guided_json": {"enum": [[]] * 300_000}},
    "a wide format": lambda: {"response_format": {"type": "json_schema", "json_schema": {"schema": [[]] * 300_000}}},
    "a wide output": lambda: {"structured_outputs": {"json": {"enum": list(range(300_000))}}},
    "many tokens of many prompts": lambda: {"prompt": [[1] * 10_000] * 200},
    "many stop tokens": lambda: {"stop_token_ids": [1] * 1_000_000},
    "many biases": lambda: {"logit_bias": {str(i): 1 for i in range(300_000)}},
    "many prompts": lambda: {"prompt": ["x"] * 1_000_000},
    "a long prompt": lambda: {"prompt": "x" * 10_000_000},
    "many tokens": lambda: {"prompt": [1] * 3_000_000},
    "a deep schema": lambda: {"guided_json": {"properties": nested(900)}},
    "a deep prompt": lambda: {"prompt": nested(900)},
    "deep processors": lambda: {"logits_processors": {"no_repeat_ngram": {"size": nested(900)}}},
    "a long stop": lambda: {"stop": ["x" * 1_000_000]},
    "a long model": lambda: {"model": "x" * 10_000_000},
    "a long regex": lambda: {"regex": "(a|b)*" * 10_000},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_completion_is_refused(api: ServedApp, kind: str) -> None:
    answer = api.complete(**{"prompt": "x", "max_tokens": 1, **HOSTILE[kind]()})
    assert answer.status in (400, 404) or (kind == "a long name" and answer.status == 200)
    if answer.status != 200:
        assert len(answer.error["message"]) < 2000
    assert api.place.reserved == [0]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x" * 5_000_000}],
        [{"role": "user", "content": [{"type": "text", "text": "x"}] * 300_000}],
        [{"role": "user", "content": "x"}] * 100_000,
        [3] * 100_000,
        [{"role": "user", "content": [{}] * 300_000}],
        [{"role": "user", "content": "x", "other": [[]] * 300_000}],
        [
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": f'{{"a": [{"[]," * 99_999}[]]}}'}}],
            }
        ],
        [{"role": "user", "content": nested(900)}],
        [{"role": "assistant", "tool_calls": nested(900)}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]}],
    ],
    ids=range(10),
)
def test_a_hostile_chat_is_refused(api: ServedApp, messages: Any) -> None:
    answer = api.chat(messages=messages, max_tokens=1)
    assert answer.status == 400, answer.body[:500]
    assert len(answer.error["message"]) < 2000


@pytest.mark.parametrize("depth", [900, 990, 1_000, 2_000, 100_000])
def test_deep_json_is_refused_at_every_depth(api: ServedApp, depth: int) -> None:
    for name in ("prompt", "guided_json", "response_format", "user", "other"):
        value = "[" * depth + "]" * depth
        body = f'{{"prompt": "x", "max_tokens": 1, "{name}": {value}}}'
        answer = api.ask("POST", "/v1/completions", content=body, headers={"content-type": "application/json"})
        assert answer.status == 400 or (name == "other" and answer.status == 200), answer.body[:300]
        json.loads(answer.body)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chat_template_kwargs", {"x": [[]] * 300_000}),
        ("chat_template_kwargs", {f"x{i}": 1 for i in range(10_000)}),
        ("chat_template_kwargs", {"documents": [{"text": "x" * 1_000_000}]}),
        ("tools", [3] * 100_000),
        ("tools", [{"type": "function", "function": {"name": "f"}}] * 300),
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": {"enum": [[]] * 100_000}}}]),
        ("messages", [{"role": "user", "content": [{}] * 300_000}]),
    ],
    ids=range(7),
)
def test_what_a_template_gets_is_limited_as_a_whole(api: ServedApp, path: str, field: str, value: Any) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], field: value}
    answer = api.post(path, body)
    assert answer.status == 400, answer.body[:500]
    assert answer.error["param"].startswith(field)
    assert len(answer.error["message"]) < 2000


def test_the_weight_of_a_value_is_known_without_seeing_all_of_it() -> None:
    class Endless(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("nobody needs to look")

    for value in (Endless([0] * 20), {"a": Endless([0] * 20)}, [1, [2, Endless([0] * 20)]]):
        with pytest.raises(ValueError, match="10 values"):
            check_weight(value, 10)
    check_weight({"a": [1, {"b": "c"}]}, 5, 3)
    for limits in ((4, 3), (5, 2)):
        with pytest.raises(ValueError, match="more than"):
            check_weight({"a": [1, {"b": "c"}]}, *limits)


def test_plain_token_ids_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Any] = []
    for name in ("check_int", "_plain_int"):
        monkeypatch.setattr(f"tokenloom.sampling_fields.{name}", lambda *arguments: looked_at.append(arguments))
    ids = list(range(1000))
    params = SamplingParams(allowed_token_ids=ids)
    assert params.allowed_token_ids == tuple(ids)
    assert not [arguments for arguments in looked_at if "id" in str(arguments[-1]) or len(arguments) == 1]


@pytest.mark.parametrize("ids", [[True], [0, -1], [2**31], [1, 1.0], [1, "1"], [None]])
def test_among_plain_token_ids_a_wrong_one_is_found(ids: list[Any]) -> None:
    with pytest.raises(RequestError, match="each id"):
        SamplingParams(allowed_token_ids=ids)


def test_an_id_that_is_allowed_twice_is_allowed_once(api: ServedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Mock(wraps=api.client.submit)
    monkeypatch.setattr(api.client, "submit", submit)
    assert api.complete(prompt="x", allowed_token_ids=[66, 65, 66] * 5000, max_tokens=2).status == 200
    assert submit.call_args.args[0].params.allowed_token_ids == (66, 65)
    assert api.complete(prompt="x", allowed_token_ids=[65] * 16_385).error["param"] == "allowed_token_ids"
