"""The client against a scripted server: what goes out, what comes back, and every way to fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from tests.core.load_generator.fake_server import FakeServer, Reply, completion_events, event
from tests.core.load_generator.lost_server import lose_server_after
from tokenloom.errors import ConfigError, RemoteServerError
from tokenloom.load_generator.agreement import ask_greedily
from tokenloom.load_generator.client_watch import ClientUse, client_warnings
from tokenloom.load_generator.endpoint import Endpoint
from tokenloom.load_generator.event_loop import run_with_stop
from tokenloom.load_generator.http_client import LoadClient, open_session
from tokenloom.load_generator.load_request import LoadRequest, Outcome, RequestRecord
from tokenloom.load_generator.load_run import LoadRun, LoadStatus, run_load
from tokenloom.load_generator.server_probe import ServerFacts, probe_server
from tokenloom.load_generator.traffic import Traffic

_Result = TypeVar("_Result")


def with_client(base_url: str, use: Callable[[LoadClient], Coroutine[Any, Any, _Result]], **fields: Any) -> _Result:
    endpoint = replace(Endpoint(f"{base_url}/v1", "completions", "tiny"), **fields)

    async def main(stop: asyncio.Event) -> _Result:
        async with open_session() as session:
            return await use(LoadClient(endpoint, session, time.perf_counter))

    return run_with_stop(main)


def requests(count: int, max_tokens: int = 3) -> list[LoadRequest]:
    body = Endpoint("", "completions", "tiny").streaming_body("Hello", max_tokens)
    return [LoadRequest(number, 0.0, body, max_tokens) for number in range(count)]


def records_of(reply: Reply, **fields: Any) -> RequestRecord:
    async def use(client: LoadClient) -> RequestRecord:
        return (await run_load(client, requests(1), Traffic("all"))).records[0]

    with FakeServer(lambda number, body: reply).running() as base_url:
        return with_client(base_url, use, **fields)


def test_a_stream_is_recorded() -> None:
    record = records_of(Reply(completion_events(["a", "b", "c"])))
    assert (record.outcome, record.num_output_tokens, record.has_usage) == (Outcome.COMPLETED, 3, True)
    assert record.scheduled_s == 0.0 <= record.sent_s <= record.chunk_times_s[0] <= record.end_s
    assert list(record.chunk_times_s) == sorted(record.chunk_times_s)
    assert sum(record.chunk_tokens) == 3


@pytest.mark.parametrize(
    ("reply", "outcome", "failure", "message"),
    [
        (Reply([b'{"error": {"message": "busy"}}'], 429, {}), Outcome.REFUSED, "http_429", "busy"),
        (Reply([b"loading"], 503, {}), Outcome.REFUSED, "http_503", "loading"),
        (Reply([b'{"error": "plain"}'], 500, {}), Outcome.FAILED, "http_500", "plain"),
        (Reply([b'{"detail": "no"}'], 422, {}), Outcome.FAILED, "http_422", "no"),
        (
            Reply([b'{"choices": []}'], 200, {"Content-Type": "application/json"}),
            Outcome.FAILED,
            "not_a_stream",
            "json",
        ),
        (Reply(completion_events(["a", "b"])[:2], tears=True), Outcome.FAILED, "broken_stream", "Client"),
        (Reply(completion_events(["a", "b"])[:2]), Outcome.FAILED, "broken_stream", "after 2 tokens"),
        (Reply([event({"error": {"message": "died"}})]), Outcome.FAILED, "server_error", "died"),
        (Reply([], hangs=True), Outcome.FAILED, "timeout", "no end within 0.2 s, after 0 tokens"),
        (Reply(completion_events(["a"])[:1], hangs=True), Outcome.FAILED, "timeout", "after 1 tokens"),
    ],
)
def test_failures_are_told_apart(reply: Reply, outcome: Outcome, failure: str, message: str) -> None:
    record = records_of(reply, timeout_s=0.2 if reply.hangs else 20.0)
    assert (record.outcome, record.failure) == (outcome, failure)
    assert message in record.message


def test_what_comes_behind_done_neither_fails_nor_delays() -> None:
    record = records_of(Reply(completion_events(["a"]), tears=True))
    assert (record.outcome, record.has_done) == (Outcome.COMPLETED, True)


def test_a_server_that_is_not_there_is_a_failure_of_each_request() -> None:
    async def use(client: LoadClient) -> list[RequestRecord]:
        return (await run_load(client, requests(2), Traffic("closed", 1))).records

    found = with_client("http://127.0.0.1:1", use)
    assert [(record.outcome, record.failure) for record in found] == [(Outcome.FAILED, "connection")] * 2
    with pytest.raises(RemoteServerError, match="no answer from http://127"):
        with_client("http://127.0.0.1:1", lambda client: client.get("http://127.0.0.1:1/v1/models"))


def test_connections_are_used_again() -> None:
    async def use(client: LoadClient) -> None:
        await run_load(client, requests(6), Traffic("closed", 2))

    server = FakeServer()
    with server.running() as base_url:
        with_client(base_url, use)
    assert (len(server.streamed), server.num_connections) == (6, 2)


def test_a_stop_keeps_what_came() -> None:
    """The second request never ends; the stop comes when the first has."""
    pieces = completion_events(["a", "b"])
    server = FakeServer(lambda number, body: Reply(pieces) if number == 0 else Reply(pieces[:1], hangs=True))

    async def use(client: LoadClient) -> tuple[list[RequestRecord], bool]:
        stop = asyncio.Event()

        def report(status: LoadStatus) -> None:
            if status.num_completed == 1 and status.num_running == 1:
                stop.set()

        run = await run_load(client, requests(9), Traffic("closed", 1), stop, report)
        return run.records, run.was_interrupted

    with server.running() as base_url:
        records, was_interrupted = with_client(base_url, use)
    assert was_interrupted
    assert [(r.outcome, r.num_output_tokens) for r in records] == [(Outcome.COMPLETED, 2), (Outcome.UNFINISHED, 1)]


def probe(server: FakeServer, form: Any = None, **fields: Any) -> ServerFacts:
    with server.running() as base_url:
        return with_client(base_url, lambda client: probe_server(client, form, [300, 301]), **fields)


def test_a_server_is_asked_for_its_model_its_version_and_the_form_of_prompts() -> None:
    facts = probe(FakeServer(models=["first", "second"]), model="")
    assert (facts.endpoint.model, facts.models, facts.version) == ("first", ("first", "second"), "9.9")
    assert facts.prompt_form == "token_ids"
    assert probe(FakeServer(takes_token_ids=False)).prompt_form == "text"
    assert probe(FakeServer(), form="text").prompt_form == "text"
    assert probe(FakeServer(), api="chat").prompt_form == "text"
    assert "secret" not in str(probe(FakeServer(), api_key="secret").to_dict())


def test_a_server_without_a_list_of_models_needs_a_name() -> None:
    assert probe(FakeServer(models=None)).models == ()
    with pytest.raises(ConfigError, match="model="):
        probe(FakeServer(models=None), model="")


def test_mistakes_are_told_before_any_load() -> None:
    with pytest.raises(ConfigError, match=r"model=tini: the server has tiny\. Did you mean 'tiny'"):
        probe(FakeServer(), model="tini")
    with pytest.raises(ConfigError, match=r"401.*a key is missing.*api_key="):
        probe(FakeServer(api_key="k"))
    assert probe(FakeServer(api_key="k"), api_key="k").models == ("tiny",)
    with pytest.raises(RemoteServerError, match="422: prompt must be text"):
        probe(FakeServer(takes_token_ids=False), form="token_ids")


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("has_logprobs", [True, False])
def test_greedy_answers_come_with_logprobs_where_they_are_offered(api: str, has_logprobs: bool) -> None:
    server = FakeServer(text="xyz", has_logprobs=has_logprobs)
    with server.running() as base_url:
        answers = with_client(base_url, lambda client: ask_greedily(client, ["one", "two"], 2), api=api)
    assert [answer.text for answer in answers] == ["xy", "xy"]
    assert answers[0].tokens == (("x", "y") if has_logprobs else None)
    assert answers[0].logprobs == ((-0.5, -0.5) if has_logprobs else None)
    assert answers[0].leads == ((1.5, 1.5) if has_logprobs else ())
    # It asks for logprobs no second time where they were refused.
    assert len(server.plain) == (2 if has_logprobs else 3)


def test_a_slow_client_is_told() -> None:
    from array import array

    busy = ClientUse(cpu_s=9.0, wall_s=10.0, lag_s=array("d", [0.05] * 10)).to_dict(num_chunks=1000)
    assert (busy["cpu_share"], busy["cpu_us_per_chunk"], busy["loop_lag_s"]["p99"]) == (0.9, 9000.0, 0.05)
    warnings = client_warnings(busy, {"p99": 0.02})
    assert ["90% of a core" in warnings[0], "50 ms late" in warnings[1], "20 ms late" in warnings[2]] == [True] * 3
    calm = ClientUse(cpu_s=1.0, wall_s=10.0, lag_s=array("d", [0.001])).to_dict(num_chunks=0)
    assert client_warnings(calm, {"p99": None}) == []
    assert calm["cpu_us_per_chunk"] is None


def test_a_wrong_path_is_told_from_a_server_without_a_list() -> None:
    async def probe(client: LoadClient) -> ServerFacts:
        return await probe_server(client.at(replace(client.endpoint, base_url=f"{url}/v2", model="")), None, [1, 2])

    with FakeServer().running() as url, pytest.raises(ConfigError, match=r"v2/models answered 404; is the path"):
        with_client(url, probe)


def test_a_question_over_a_connection_that_was_closed_is_asked_again() -> None:
    """The first answer's connection is kept by the client and closed by the server, without a word."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    num_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        for is_answered in (True, num_connections > 1):
            await reader.readuntil(b"{}")
            if is_answered:
                writer.write(answer)
                await writer.drain()
        writer.close()

    async def main(stop: asyncio.Event) -> list[dict[str, Any]]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, open_session() as session:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            client = LoadClient(Endpoint(url, "completions", "tiny"), session, time.perf_counter)
            return [await client.complete(b"{}") for _ in range(2)]

    assert run_with_stop(main) == [{}, {}]
    assert num_connections == 2


def test_a_load_whose_server_is_lost_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    lose_server_after(5, monkeypatch)

    async def use(client: LoadClient) -> LoadRun:
        return await run_load(client, requests(99), Traffic("closed", 1))

    with FakeServer().running() as base_url:
        run = with_client(base_url, use)
    assert run.lost is not None
    assert "cannot be reached any more" in str(run.lost)
    completed = [record for record in run.records if record.is_completed]
    assert len(completed) == 5
    assert run.load_end_s == max(record.end_s for record in completed)
    assert not run.was_interrupted
