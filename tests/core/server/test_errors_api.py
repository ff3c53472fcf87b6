"""Errors over HTTP: one form, the right status, and a server that goes on."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import Mock

import pytest

from tests.core.server.served_app import ServedApp
from tokenloom.engine_output import EngineOutput
from tokenloom.engine_process.linked_stream import LinkedStream
from tokenloom.engine_process.local_client import LocalEngine
from tokenloom.errors import CONTEXT_LENGTH_EXCEEDED, ModelError, RequestError
from tokenloom.server import service
from tokenloom.server.completion_answer import CompletionAnswer
from tokenloom.server.front_end_place import FrontEndPlace
from tokenloom.server.model_text import ModelText, load_model_text

Serve = Callable[..., ServedApp]
NUMBERS: tuple[Any, ...] = (-1, 0, 1, 2**31, 2**63, 2**70, 1e308, 0.5, -0.0, "1", True, None, [], {}, [1], "")
RAW_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 5000)
COMMON = (
    "n",
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "prompt_logprobs",
    "priority",
    "ttft_slo_s",
    "tpot_slo_s",
    "retention_priority",
    "retention_ttl_s",
    "best_of",
)
FIELDS = {
    "/v1/completions": (*COMMON, "logprobs", "prompt"),
    "/v1/chat/completions": (*COMMON, "top_logprobs", "max_completion_tokens"),
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "logprobs": True},
}


@pytest.mark.parametrize(("path", "field"), [(path, field) for path, fields in FIELDS.items() for field in fields])
def test_every_number_is_taken_or_refused_and_the_next_request_works(api: ServedApp, path: str, field: str) -> None:
    body = BODIES[path]
    raw = [json.dumps(value) for value in NUMBERS] + list(RAW_NUMBERS)
    for value in raw:
        others = {key: item for key, item in body.items() if key != field}
        text = json.dumps(others)[:-1] + f', "{field}": {value}}}'
        answer = api.ask("POST", path, content=text.encode(), headers={"content-type": "application/json"})
        assert answer.status in (200, 400), (value, answer.body)
        if answer.status == 400:
            assert value in RAW_NUMBERS or answer.error["message"]
        else:
            assert answer.json["choices"]
    assert api.post(path, body).status == 200


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids", "prompt", "logit_bias", "bad_words", "stop"])
def test_every_token_id_is_taken_or_refused_and_the_next_request_works(api: ServedApp, field: str) -> None:
    ids: tuple[Any, ...] = (10**400, -1, 0, 319, 320, 2**31, 2**63, 2**70, 1.5, "1", True, None, [], {})
    for token_id in ids:
        value = {str(token_id): 1} if field == "logit_bias" else [token_id]
        answer = api.complete(**{"prompt": "x", "max_tokens": 2, field: value})
        assert answer.status in (200, 400), (token_id, answer.body)
        if isinstance(token_id, int) and field not in ("bad_words", "stop"):
            assert answer.status == (200 if token_id in (0, 319) and token_id is not False else 400)
    assert api.complete(prompt="x").status == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 129}, "n"),
        ({"prompt": ["x"] * 200, "n": 100}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt": ["x"] * 257}, "prompt"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 1025}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"bad_words": ["x" * 257]}, "bad_words"),
        ({"bad_words": ["x"] * 257}, "bad_words"),
        ({"stop_token_ids": [1] * 257}, "stop_token_ids"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"prompt": "x" * 40_000}, "prompt"),
        ({"prompt": [1] * 256}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"logits_processors": {"no_such": {}}}, "logits_processors"),
        ({"logits_processors": {"no_repeat_ngram": {"size": 2**70}}}, "logits_processors"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": "yes"}, "echo"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_exceeds_a_limit_is_refused_by_name(api: ServedApp, fields: dict[str, Any], param: str | None) -> None:
    for stream in (False, True):
        answer = api.complete(**{"prompt": "x", "stream": stream, **fields})
        assert answer.status == 400, answer.body
        assert param is None or answer.error["param"] == param
        assert answer.error["type"] == "invalid_request_error"


def test_a_prompt_longer_than_the_context_has_a_code_of_its_own(api: ServedApp) -> None:
    for prompt in ([1] * 256, "x" * 256, "x" * 40_000):
        error = api.complete(prompt=prompt).error
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    for length in (256, 40_000):
        error = api.chat(messages=[{"role": "user", "content": "x" * length}]).error
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


def test_a_request_that_forbids_every_token_is_its_own_fault(api: ServedApp) -> None:
    answer = api.complete(prompt="x", allowed_token_ids=[65], bad_words=["A"])
    assert answer.status == 400
    late = api.complete(prompt="x", allowed_token_ids=[65, 66], bad_words=["AA", "AB", "BA", "BB"])
    assert (late.status, late.error["code"]) == (400, "no_token_left")


def test_routes_and_methods_that_do_not_exist_are_told_in_the_same_form(api: ServedApp) -> None:
    assert (api.get("/v1/nope").status, api.get("/v1/nope").error["code"]) == (404, "unknown_route")
    answer = api.ask("DELETE", "/v1/completions")
    assert (answer.status, answer.headers["allow"], answer.error["code"]) == (405, "POST", "method_not_allowed")
    assert api.get("/v1/completions").status == 405


def test_models_are_known_by_name(api: ServedApp) -> None:
    models = api.get("/v1/models").json
    assert [card["id"] for card in models["data"]] == ["tiny"]
    assert api.get("/v1/models/tiny").json["object"] == "model"
    for answer in (api.get("/v1/models/a/b"), api.complete(prompt="x", model="gpt-4o"), api.chat(model="gpt-4o")):
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert api.complete(prompt="x", model="tiny").status == 200
    assert api.complete(prompt="x", model=None).json["model"] == "tiny"


def test_without_names_the_model_is_called_like_its_source(serve: Serve, served_folder: Any) -> None:
    app = serve(served_model_names=())
    assert app.get("/v1/models").json["data"][0]["id"] == str(served_folder)


def test_bodies_that_are_too_large_are_refused_with_and_without_a_length(serve: Serve) -> None:
    app = serve(max_body_bytes=2048)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 1000

    head = {"content-type": "application/json"}
    for content in (b" " * 2049, endless()):
        answer = app.ask("POST", "/v1/completions", content=content, headers=head)
        assert (answer.status, answer.error["code"], answer.headers["connection"]) == (413, "body_too_large", "close")
    assert app.complete(prompt="x").status == 200


def test_a_body_that_does_not_come_is_not_waited_for(serve: Serve) -> None:
    app = serve(read_timeout_s=0.05)

    async def stalled() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    head = {"content-type": "application/json"}
    answer = app.ask("POST", "/v1/completions", content=stalled(), headers=head)
    assert (answer.status, answer.error["code"]) == (408, "body_timeout")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
def test_only_json_is_taken(api: ServedApp, kind: str) -> None:
    answer = api.ask("POST", "/v1/completions", content=b'{"prompt": "x"}', headers={"content-type": kind})
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/problem+JSON"])
def test_json_has_several_names(api: ServedApp, kind: str) -> None:
    body = b'{"prompt": "x", "max_tokens": 1}'
    assert api.ask("POST", "/v1/completions", content=body, headers={"content-type": kind}).status == 200


def test_request_ids_are_echoed_or_made(api: ServedApp) -> None:
    for path in ("/health", "/nope", "/v1/models"):
        assert api.get(path, headers={"X-Request-Id": "my-id/1"}).headers["x-request-id"] == "my-id/1"
    for wrong in ("", "x" * 129, "a b", "\xe9"):
        made = api.get("/health", headers={"X-Request-Id": wrong.encode("latin-1")}).headers["x-request-id"]
        assert made.startswith("req-")
    streamed = api.complete(prompt="x", stream=True)
    assert streamed.headers["x-request-id"].startswith("req-")


def test_equal_request_ids_do_not_meet(api: ServedApp) -> None:
    async def both() -> list[Any]:
        body = {"prompt": "x", "max_tokens": 20}
        work = [api.http.post("/v1/completions", json=body, headers={"X-Request-Id": "same"}) for _ in range(4)]
        return await asyncio.gather(*work)

    answers = api.run(both())
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len({answer.json()["id"] for answer in answers}) == 4


def test_ignored_fields_are_named_in_a_header(api: ServedApp) -> None:
    answer = api.complete(prompt="x", mirostat=2, chat_id="x")
    assert (answer.status, answer.headers["x-ignored-fields"]) == (200, "mirostat, chat_id")
    assert "x-ignored-fields" not in api.complete(prompt="x", user="x").headers


def test_keys_open_everything_but_health(serve: Serve) -> None:
    app = serve(api_keys=("alice:s3cret", "other"))
    for path in ("/health", "/ready", "/ping"):
        assert app.get(path).status == 200
    for path in ("/v1/models", "/metrics", "/version", "/docs", "/openapi.json", "/nope"):
        answer = app.get(path)
        assert (answer.status, answer.error["code"]) == (401, "missing_api_key")
        assert answer.headers["x-request-id"]
    assert app.complete(prompt="x").error["type"] == "authentication_error"
    wrong = app.get("/v1/models", headers={"Authorization": "Bearer nope"})
    assert (wrong.status, wrong.error["code"]) == (401, "invalid_api_key")
    assert app.get("/v1/models", headers={"Authorization": "Bearer s3cret"}).status == 200


def cached_tokens(app: ServedApp, prompt: str, key: str, **fields: Any) -> int:
    body = {"prompt": prompt, "max_tokens": 1, **fields}
    answer = app.post("/v1/completions", body, headers={"Authorization": f"Bearer {key}"})
    count: int = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_tenants_do_not_find_each_others_prefixes(serve: Serve) -> None:
    app = serve(api_keys=("a", "b"))
    prompt = "a long prompt of the first tenant, several blocks of the prefix cache, nobody else's"
    assert cached_tokens(app, prompt, "a") == 0
    assert cached_tokens(app, prompt, "b") == 0
    assert cached_tokens(app, prompt, "a") > 0
    assert cached_tokens(app, prompt, "a", cache_salt="mine") == 0
    assert cached_tokens(app, prompt, "b", cache_salt="mine") == 0
    shared = serve(api_keys=("a", "b"), shared_prefix_cache=True)
    assert cached_tokens(shared, prompt + "!", "a") == 0
    assert cached_tokens(shared, prompt + "!", "b") > 0


def test_a_full_server_refuses_at_once_and_counts_choices(serve: Serve, served_engine: LocalEngine) -> None:
    counts = [0, 62]  # of 8 + 56 places, another front end holds all but two
    app = ServedApp(served_engine, served_model_names=("tiny",), retry_after_s=7, place=FrontEndPlace(0, 2, counts))
    try:
        answer = app.complete(prompt="x", n=3)
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (429, "overloaded", "7")
        assert answer.error["type"] == "overloaded_error"
        assert app.complete(prompt=["x", "y", "z"], stream=True).status == 429
        assert app.complete(prompt="x", n=2).status == 200
        counts[1] = 64
        # Refused before the body is read: it need not even be JSON.
        assert app.ask("POST", "/v1/completions", content=b"x").status == 429
        assert app.post("/tokenize", {"prompt": "x"}).status == 200
        assert app.get("/health").status == 200
        assert counts == [0, 64]
    finally:
        app.close()


def test_more_choices_than_the_server_holds_can_never_run(api: ServedApp) -> None:
    answer = api.complete(prompt=["x"] * 33, n=2)
    assert (answer.status, answer.error["param"]) == (400, "n")


def test_places_are_given_back_on_every_path(serve: Serve) -> None:
    app = serve()
    for fields in (
        {"prompt": "x"},
        {"prompt": "x", "stream": True, "n": 2},
        {"prompt": [1] * 600},
        {"prompt": [400]},
        {"prompt": "x", "stop_token_ids": [400]},
        {"prompt": ["x", "y" * 600], "stream": True},
        {"prompt": "x", "regex": "(", "max_tokens": 3},
        {"prompt": "x", "bad_words": ["\ue000" * 0 + " "]},
    ):
        app.complete(**fields)
        assert app.place.reserved == [0], fields
    app.chat(messages=[{"role": "user", "content": [{"type": "audio"}]}])
    assert app.place.reserved == [0]


def test_a_stopping_server_takes_nothing_more(serve: Serve) -> None:
    app = serve()
    app.place.is_draining = True
    for answer in (app.complete(prompt="x"), app.chat(), app.get("/ready")):
        assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
        assert answer.headers["retry-after"] == "1"
    assert app.get("/health").status == 200


def test_without_an_engine_requests_are_refused_and_health_says_so(serve: Serve) -> None:
    app = serve()
    assert app.get("/ready").status == 200
    app.run(detach(app))
    for answer in (app.get("/health"), app.get("/ready"), app.complete(prompt="x"), app.chat(), app.get("/v1/models")):
        assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
        assert answer.headers["retry-after"] == "1"
    assert app.get("/version").status == 200
    assert app.place.reserved == [0]


async def detach(app: ServedApp) -> None:
    app.client.detach("the engine died")


def test_streams_end_with_an_error_when_the_engine_dies(serve: Serve) -> None:
    app = serve()

    async def die() -> list[Any]:
        body = {"prompt": "x", "max_tokens": 240, "ignore_eos": True}
        streamed = asyncio.create_task(app.http.post("/v1/completions", json={**body, "stream": True}))
        whole = asyncio.create_task(app.http.post("/v1/completions", json=body))
        while app.client.num_choices < 2 or (await app.client.call("stats"))["running"] < 2:
            await asyncio.sleep(0)
        app.client.detach("the engine died")
        return [await streamed, await whole]

    streamed, whole = app.run(die())
    assert whole.status_code == 503
    assert streamed.status_code in (200, 503)  # with or without a token before
    if streamed.status_code == 200:
        *_, error, done = streamed.text.strip().split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_unavailable"
        assert done == "data: [DONE]"
    assert app.place.reserved == [0]


def test_a_mistake_of_ours_is_told_as_such(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = serve(cors_origins=("https://example.com",))
    before = rejections(app)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("NaN")

    monkeypatch.setattr(app.service, "reserve", broken)
    head = {"X-Request-Id": "mine-1", "Origin": "https://example.com"}
    answer = app.post("/v1/completions", {"prompt": "x"}, headers=head)
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert "NaN" not in answer.error["message"]
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["access-control-allow-origin"] == "https://example.com"
    assert "request mine-1 failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert rejections(app)["internal"] == before["internal"] + 1


def test_a_tokenizer_that_could_not_be_loaded_is_loaded_again(
    serve: Serve, served_folder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Exception] = [FileNotFoundError("gone"), MemoryError(), ModelError("corrupt")]

    def load(path: str) -> ModelText:
        if failures:
            raise failures.pop()
        return load_model_text(path)

    app = serve(load_text=load)
    assert [app.complete(prompt="x").status for _ in range(4)] == [500, 500, 500, 200]
    assert caplog.text.count("the model's tokenizer cannot be loaded") == 3


def test_texts_of_tokens_are_limited_and_do_not_delay_others(serve: Serve) -> None:
    app = serve()
    answer = app.post("/detokenize", {"tokens": [65] * 257})
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "tokens", "context_length_exceeded")
    assert app.post("/detokenize", {"tokens": [65] * 256}).json["prompt"] == "A" * 256
    app.run(_hold(app))
    app.place.is_draining = True
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [65]})):
        assert app.post(path, body).error["code"] == "engine_unavailable"


async def _hold(app: ServedApp) -> None:
    """Work of /tokenize that does not end does not stop what requests for tokens need."""
    apart, text = await app.service.text_apart(), await app.service.text()
    released = threading.Event()
    held = asyncio.get_running_loop().run_in_executor(apart._thread, released.wait)
    assert len((await text.encode(["x" * 10_000]))[0]) == 10_000
    assert not held.done()
    released.set()
    await held


def test_long_texts_that_would_wait_behind_too_many_are_refused_for_now(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_MAX_TEXTS_APART", 2)
    app = serve(retry_after_s=7)

    async def flood() -> tuple[list[Any], Any, Any]:
        released, apart = threading.Event(), await app.service.text_apart()
        held = apart._thread.submit(released.wait)
        body = {"prompt": "x" * 10_000}
        waiting = [asyncio.create_task(app.http.post("/tokenize", json=body)) for _ in range(2)]
        while len(apart._waiting) < 2:
            await asyncio.sleep(0)
        refused = await app.http.post("/tokenize", json=body)
        short = await app.http.post("/tokenize", json={"prompt": "x"})
        released.set()
        held.result()
        return [*await asyncio.gather(*waiting), await app.http.post("/tokenize", json=body)], refused, short

    answered, refused, short = app.run(flood())
    assert [answer.status_code for answer in answered] == [200, 200, 200]
    assert short.status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
    assert refused.headers["retry-after"] == "7"
    assert "2 long texts" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"logprobs": 99}, "logprobs", "logprobs must be an integer from 0 to 20"),
        ({"logprobs": 3, "prompt_logprobs": 2}, "prompt_logprobs", "must equal logprobs=3"),
        ({"logprobs": 3, "max_tokens": 0, "min_tokens": 1}, "min_tokens", "must not exceed max_tokens=0, got 1"),
        ({"max_tokens": 0, "min_tokens": 5}, "min_tokens", "must not exceed max_tokens=0, got 5"),
    ],
)
def test_with_echo_errors_name_the_fields_and_values_that_were_sent(
    api: ServedApp, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = api.complete(prompt="x", echo=True, **fields)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert message in answer.error["message"]


def test_what_the_engine_calls_a_prompt_is_called_messages_in_a_chat(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = serve()

    def refuse(submission: Any) -> Any:
        raise RequestError("the prompt does not fit the KV cache", "prompt", code=CONTEXT_LENGTH_EXCEEDED)

    monkeypatch.setattr(app.client, "submit", refuse)
    for answer, field in ((app.chat(), "messages"), (app.complete(prompt="x"), "prompt")):
        assert (answer.status, answer.error["param"], answer.error["code"]) == (400, field, CONTEXT_LENGTH_EXCEEDED)


def test_every_503_says_when_to_come_again(serve: Serve) -> None:
    app = serve(retry_after_s=7)

    async def stop() -> Any:
        body = {"prompt": "x", "max_tokens": 240, "ignore_eos": True}
        asked = asyncio.create_task(app.http.post("/v1/completions", json=body))
        while app.client.num_choices < 1:
            await asyncio.sleep(0)
        app.client.stop_all()
        return await asked

    answer = app.run(stop())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_stopping")
    assert answer.headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("route", "asked"),
    [
        ("completions", {"prompt": "x"}),
        ("completions", {"prompt": ["x", "y"]}),
        ("completions", {"prompt": ["x", "y", "z"], "n": 2}),
        ("completions", {"prompt": "x", "n": 2}),
        ("completions", {"prompt": "x", "echo": True, "logprobs": 1}),
        ("completions", {"prompt": "x", "stream": True}),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_the_log_counts_the_tokens_of_an_answer_that_draining_cut_off(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    route: str,
    asked: dict[str, Any],
) -> None:
    app, come = serve(), list[int]()
    put = LinkedStream.put

    def counted(stream: LinkedStream, output: EngineOutput) -> None:
        if output.finish_reason is None:
            come.extend(output.token_ids)
        put(stream, output)

    monkeypatch.setattr(LinkedStream, "put", counted)

    async def stop() -> None:
        body = {**asked, "max_tokens": 200, "ignore_eos": True}
        answer = asyncio.create_task(app.http.post(f"/v1/{route}", json=body))
        while len(come) < 5:
            await asyncio.sleep(0)
        app.client.stop_all()
        await answer

    with caplog.at_level("DEBUG", "tokenloom.server.request_report"):
        app.run(stop())
    assert f" and {len(come)} output tokens" in caplog.text
    assert "the server is shutting down" in caplog.text


@pytest.mark.parametrize("prompt", ["x", ["x", "y"]])
def test_the_engine_knows_a_request_by_the_id_of_its_answer(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, prompt: Any
) -> None:
    app = serve()
    submit = Mock(wraps=app.client.submit)
    monkeypatch.setattr(app.client, "submit", submit)
    with caplog.at_level("DEBUG", "tokenloom.server.request_report"):
        answer = app.post("/v1/completions", {"prompt": prompt, "n": 2}, headers={"X-Request-Id": "mine-1"})
    answer_id = answer.json["id"]
    sent = [call.args[0].request_id for call in submit.call_args_list]
    assert all(request_id.startswith(answer_id) for request_id in sent)
    assert len(set(sent)) == len(answer.json["choices"]) // 2
    assert f"request mine-1 ({answer_id})" in caplog.text


def test_a_mistake_of_ours_in_mid_stream_ends_the_stream(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = serve()
    events = CompletionAnswer.events

    def breaks_later(self: CompletionAnswer, index: int, delta: Any, usage: Any) -> bytes:
        if delta.output.finish_reason is not None:
            raise ZeroDivisionError
        return events(self, index, delta, usage)

    monkeypatch.setattr(CompletionAnswer, "events", breaks_later)
    *chunks, error = app.complete(prompt="x", stream=True, max_tokens=100).chunks  # more than one batch of news
    assert all("choices" in chunk for chunk in chunks)
    assert error["error"]["code"] == "internal_error"
    assert "failed in mid-stream" in caplog.text
    assert app.place.reserved == [0]


def rejections(app: ServedApp) -> dict[str, float]:
    """Counts of refused requests, by reason, as /metrics tells them."""
    lines = [line for line in app.get("/metrics").body.decode().splitlines() if "request_rejections_total{" in line]
    return {line.split('reason="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


def test_refusals_are_counted_once_wherever_they_happen(serve: Serve) -> None:
    app = serve()
    before = rejections(app)
    app.complete(prompt="x", temperature="hot")
    app.complete(prompt="x", model="nope")
    app.complete(prompt="x", stop_token_ids=[400])  # the engine refuses it, and counts it itself
    app.ask("POST", "/v1/completions", content=b" " * (3 * 2**20), headers={"content-type": "application/json"})
    after = rejections(app)
    assert {reason: after[reason] - before[reason] for reason in after if after[reason] != before[reason]} == {
        "invalid": 3,
        "too_large": 1,
    }
    locked = serve(api_keys=("secret",))
    locked.complete(prompt="x")
    head = {"Authorization": "Bearer secret"}
    text = locked.get("/metrics", headers=head).body.decode()
    assert re.search(r'request_rejections_total\{[^}]*reason="unauthorized"[^}]*\} 1.0', text)


def test_a_refusal_names_the_field_that_the_client_sent(api: ServedApp) -> None:
    hello = {"messages": [{"role": "user", "content": "x"}]}
    for fields, param in (
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"regex": "("}, "regex"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "("}}, "structured_outputs"),
    ):
        answer = api.chat(**{**hello, **fields})
        assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert api.complete(prompt=["x"] * 65).error["param"] == "prompt"
    assert api.post("/detokenize", {"tokens": [10**6]}).error["param"] == "tokens"


def test_the_models_own_end_has_no_stop_reason(api: ServedApp) -> None:
    asked = {"prompt": "x", "allowed_token_ids": [256], "ignore_eos": False}
    ended = api.complete(**asked).json["choices"][0]
    assert (ended["finish_reason"], ended["stop_reason"]) == ("stop", None)
