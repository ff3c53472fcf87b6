"""The official openai client against a real socket, without any setting of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.core.server.served_app import ServedApp
from tokenloom.engine_process.local_client import LocalEngine
from tokenloom.server.front_end_place import FrontEndPlace

MESSAGES: Any = [{"role": "user", "content": "Hello"}]


TERSE = {"9": -100, "10": -100, "13": -100, "32": -100}
"""Random weights like white space too much, which JSON allows anywhere."""


class City(BaseModel):
    """What a structured reply holds."""

    name: Literal["Rome", "Paris"]
    is_big: bool


@pytest.fixture(scope="module")
def client(served_engine: LocalEngine) -> Iterator[OpenAI]:
    with (
        ServedApp(served_engine, served_model_names=("tiny",), api_keys=("sk-test",)) as app,
        OpenAI(base_url=f"{app.url}/v1", api_key="sk-test", max_retries=0, timeout=60) as client,
    ):
        yield client


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "tokenloom"


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=6, seed=1)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    assert answer.usage.prompt_tokens_details is not None


def test_chat_with_raw_response(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, max_tokens=2, extra_headers={"X-Request-Id": "abc"}
    )
    assert raw.headers["x-request-id"] == "abc"
    assert raw.parse()._request_id == "abc"


def test_chat_stream(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=9, temperature=0)
    stream = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=9,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == 9  # type: ignore[union-attr]


def test_chat_stream_helper_of_the_client(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=MESSAGES, max_tokens=99, temperature=0, response_format=City, logit_bias=TERSE
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        message = stream.get_final_completion().choices[0].message
    assert message.content == text
    assert message.parsed == City.model_validate_json(text)


def test_chat_with_several_choices(client: OpenAI) -> None:
    options: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5, "temperature": 1.5, "seed": 3, "n": 3}
    whole = client.chat.completions.create(**options)
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) > 1
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_chat_logprobs(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=4, temperature=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 3
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 4
        assert entry.bytes is not None


def test_completion(client: OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt=["a", "b"], max_tokens=4, logprobs=2, echo=True, extra_body={"ignore_eos": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert len(logprobs.token_logprobs) == 5
    assert answer.choices[0].text.startswith("a")


def test_completion_stream(client: OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt="Once", max_tokens=12, temperature=0)
    stream = client.completions.create(model="tiny", prompt="Once", max_tokens=12, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_stop(client: OpenAI) -> None:
    free = client.completions.create(model="tiny", prompt="Once", max_tokens=12, temperature=0).choices[0].text
    stop = free[4:6]
    choice = client.completions.create(model="tiny", prompt="Once", max_tokens=12, temperature=0, stop=[stop]).choices[
        0
    ]
    assert (choice.text, choice.finish_reason) == (free.partition(stop)[0], "stop")


def test_extras_in_extra_body(client: OpenAI) -> None:
    extra = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True, "priority": 3}
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=3, extra_body={**extra, "cache_salt": "x", "ttft_slo_s": 0.5}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_fields_that_clients_send_by_habit(client: OpenAI) -> None:
    client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=1,
        user="u",
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        safety_identifier="x",
        prompt_cache_key="y",
    )


def test_json_schema(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=City, temperature=0, max_tokens=99, logit_bias=TERSE
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_json_object(client: OpenAI) -> None:
    text = (
        client.chat.completions.create(
            model="tiny", messages=MESSAGES, response_format={"type": "json_object"}, temperature=0, max_tokens=30
        )
        .choices[0]
        .message.content
    )
    assert (text or "").lstrip().startswith("{")


@pytest.mark.parametrize(
    ("options", "error", "param"),
    [
        ({"temperature": 1e9}, openai.BadRequestError, "temperature"),
        ({"model": "gpt-4o"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, openai.BadRequestError, "messages"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_those_that_the_client_knows(
    client: OpenAI, options: dict[str, Any], error: type[openai.APIStatusError], param: str, stream: bool
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, "stream": stream, **options})
    assert caught.value.param == param
    assert caught.value.request_id
    assert json.loads(caught.value.response.text)["error"]["message"] in str(caught.value)


def test_wrong_keys_are_refused(client: OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-wrong").models.list()


def test_a_full_server_is_an_error_that_the_client_tries_again_by_itself(served_engine: LocalEngine) -> None:
    counts = [0, 64]
    place = FrontEndPlace(0, 2, counts)
    with (
        ServedApp(served_engine, served_model_names=("tiny",), retry_after_s=0, place=place) as app,
        OpenAI(base_url=f"{app.url}/v1", api_key="x", max_retries=2) as client,
    ):
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="tiny", prompt="x")
        assert caught.value.request.headers["x-stainless-retry-count"] == "2"
        counts[1] = 0
        assert client.completions.create(model="tiny", prompt="x").choices
