"""LinkedClient over a fake link: who gets which output, what slow readers see, and what the engine's death leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.core.engine_process.served_stub import INFO, FakeFrontEndLink, submission
from tokenloom.batch import TokenLogprobs
from tokenloom.engine_output import EngineOutput, RequestTimes
from tokenloom.engine_process.fault import Fault, fault_of
from tokenloom.engine_process.linked_client import LinkedClient
from tokenloom.engine_process.linked_stream import LinkedStream
from tokenloom.engine_process.messages import Abort, Call, Failed, Hello, Outputs, Refused, Reply, Truncate
from tokenloom.errors import EngineDeadError, OverloadedError, RequestError, TokenloomError
from tokenloom.request import FinishReason


def connected() -> tuple[LinkedClient, FakeFrontEndLink]:
    client, link = LinkedClient(), FakeFrontEndLink()
    client.attach(link)
    link.take(INFO)
    assert link.sent == [Hello()]
    link.sent.clear()
    return client, link


def output(
    request_id: str, *token_ids: int, end: FinishReason | None = None, logprobs: tuple[TokenLogprobs, ...] = ()
) -> EngineOutput:
    times = RequestTimes(1.0, 2.0, 3.0, None if end is None else 4.0)
    return EngineOutput(request_id, list(token_ids), logprobs, end, None, 5, None, 3.5, times)


async def all_of(stream: LinkedStream) -> list[list[EngineOutput]]:
    return [outputs async for outputs in stream]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30.0))


def test_a_client_is_ready_from_the_engines_first_word_to_its_end() -> None:
    async def test() -> None:
        news: list[bool] = []
        client, link = LinkedClient(on_ready=lambda: news.append(client.is_ready)), FakeFrontEndLink()
        with pytest.raises(EngineDeadError, match="try again"):
            client.info  # noqa: B018
        client.attach(link)
        with pytest.raises(EngineDeadError, match="try again"):
            client.submit(submission("a"))
        link.take(INFO)
        assert (client.is_ready, client.info, news) == (True, INFO, [True])
        client.detach("it died")
        assert (client.is_ready, client.info, link.is_closed) == (False, INFO, True)

    run(test())


def test_each_stream_gets_its_own_outputs_until_its_choices_have_ended() -> None:
    async def test() -> None:
        client, link = connected()
        a, b = client.submit(submission("a", n=2)), client.submit(submission("b"))
        link.take(Outputs([output("a-0", 1), output("b", 2, end=FinishReason.LENGTH), output("a-1", 3)]))
        assert await anext(a) == [output("a-0", 1), output("a-1", 3)]
        assert await all_of(b) == [[output("b", 2, end=FinishReason.LENGTH)]]
        link.take(Outputs([output("a-1", 4, end=FinishReason.STOP)]))
        assert client.num_choices == 1
        link.take(Outputs([output("a-0", 5, end=FinishReason.STOP)]))
        last = {o.request_id: o.token_ids for outputs in await all_of(a) for o in outputs}
        assert last == {"a-0": [5], "a-1": [4]}
        assert client.num_choices == 0

    run(test())


def test_a_waiting_reader_is_woken() -> None:
    async def test() -> None:
        client, link = connected()
        reading = asyncio.create_task(all_of(client.submit(submission("a"))))
        for token_id in (1, 2):
            await asyncio.sleep(0)
            link.take(Outputs([output("a", token_id)]))
        await asyncio.sleep(0)
        link.take(Outputs([output("a", 3, end=FinishReason.LENGTH)]))
        assert [[o.token_ids for o in outputs] for outputs in await reading] == [[[1]], [[2]], [[3]]]

    run(test())


def test_a_slow_reader_gets_one_output_of_each_choice_with_all_that_has_landed() -> None:
    async def test() -> None:
        client, link = connected()
        stream = client.submit(submission("a", n=2))
        first, second = TokenLogprobs(7, -1.0), TokenLogprobs(8, -2.0)
        link.take(Outputs([output("a-0", 7, logprobs=(first,)), output("a-1", 1)]))
        link.take(Outputs([output("a-0", 8, end=FinishReason.STOP, logprobs=(second,)), output("a-1", 2, 3)]))
        (outputs,) = [await anext(stream)]
        assert [(o.request_id, o.token_ids) for o in outputs] == [("a-0", [7, 8]), ("a-1", [1, 2, 3])]
        assert (outputs[0].logprobs, outputs[0].finish_reason) == ((first, second), FinishReason.STOP)
        assert outputs[0].times.finish_s == 4.0
        stream.close()

    run(test())


def test_nothing_comes_of_a_choice_that_was_cut_at_a_stop_string() -> None:
    async def test() -> None:
        client, link = connected()
        stream = client.submit(submission("a", n=2))
        link.take(Outputs([output("a-0", 1), output("a-1", 1)]))
        await anext(stream)
        link.take(Outputs([output("a-0", 2), output("a-1", 2, end=FinishReason.LENGTH)]))
        stream.truncate("a-0", 1, "stop")
        stream.truncate("a-0", 1, "stop")
        link.take(Outputs([output("a-0", 3)]))
        assert [[o.request_id for o in outputs] for outputs in await all_of(stream)] == [["a-1"]]
        assert link.sent[1:] == [Truncate("a-0", 1, "stop")]

    run(test())


def test_closing_a_stream_aborts_what_runs_once() -> None:
    async def test() -> None:
        client, link = connected()
        stream, other = client.submit(submission("a", n=2)), client.submit(submission("b"))
        stream.close()
        stream.close()
        link.take(Outputs([output("a-0", 1), output("b", 1, end=FinishReason.LENGTH)]))
        assert await all_of(stream) == []
        assert len(await all_of(other)) == 1
        other.close()
        assert link.sent[2:] == [Abort(["a"])]
        assert client.num_choices == 0

    run(test())


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("request", "too long", "prompt", "context_length_exceeded"), RequestError),
        (Fault("overloaded", "full", retry_after_s=3.0), OverloadedError),
        (Fault("engine_dead", "gone"), EngineDeadError),
        (Fault("internal", "bug"), TokenloomError),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_a_refusal_is_raised_where_outputs_are_awaited(fault: Fault, error: type[TokenloomError], n: int) -> None:
    async def test() -> None:
        client, link = connected()
        stream = client.submit(submission("a", n=n))
        link.take(Refused("a", fault))
        with pytest.raises(error, match=fault.message) as raised:
            await all_of(stream)
        assert type(raised.value) is error
        assert fault_of(raised.value) == fault
        assert client.num_choices == 0
        client.submit(submission("a", n=n))

    run(test())


def test_a_request_id_can_be_used_once_at_a_time() -> None:
    async def test() -> None:
        client, _ = connected()
        client.submit(submission("a", n=2))
        with pytest.raises(RequestError, match="'a-0' is in use"):
            client.submit(submission("a", n=2))

    run(test())


@pytest.mark.parametrize("is_told", [True, False])
def test_the_death_of_the_engine_ends_streams_and_calls_behind_what_had_landed(is_told: bool) -> None:
    async def test() -> None:
        client, link = connected()
        stream = client.submit(submission("a"))
        asking = asyncio.create_task(client.call("stats"))
        await asyncio.sleep(0)
        link.take(Outputs([output("a", 1)]))
        if is_told:
            link.take(Failed("device lost"))
        else:
            client.detach("device lost")
        assert [o.token_ids for o in await anext(stream)] == [[1]]
        with pytest.raises(EngineDeadError, match="device lost"):
            await anext(stream)
        with pytest.raises(EngineDeadError, match="device lost"):
            await asking
        stream.close()
        assert link.is_closed

    run(test())


def test_a_client_goes_over_to_the_next_engine() -> None:
    async def test() -> None:
        client, first = connected()
        stream = client.submit(submission("a"))
        second = FakeFrontEndLink()
        client.attach(second)
        with pytest.raises(EngineDeadError):
            await all_of(stream)
        assert (first.is_closed, client.is_ready) == (True, False)
        second.take(INFO)
        stream = client.submit(submission("a"))
        second.take(Outputs([output("a", 1, end=FinishReason.LENGTH)]))
        assert len(await all_of(stream)) == 1

    run(test())


def test_calls_are_answered_by_number_with_result_or_error() -> None:
    async def test() -> None:
        client, link = connected()
        asked = [asyncio.create_task(client.call("kv_map", max_cells=3)), asyncio.create_task(client.call("fly"))]
        await asyncio.sleep(0)
        assert link.sent == [Call(0, "kv_map", {"max_cells": 3}), Call(1, "fly", {})]
        link.take(Reply(1, fault=Fault("request", "cannot", "max_cells")))
        link.take(Reply(0, ["nff"]))
        link.take(Reply(9, "nobody asked"))
        assert await asked[0] == ["nff"]
        with pytest.raises(RequestError, match="cannot") as raised:
            await asked[1]
        assert raised.value.param == "max_cells"

    run(test())


def test_a_call_that_cannot_be_sent_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(message: object) -> None:
        raise OverflowError("too large for the wire")

    async def test() -> None:
        client, link = connected()
        monkeypatch.setattr(link, "send", refuse)
        with pytest.raises(OverflowError):
            await client.call("kv_map", max_cells=2**70)
        assert not client._calls

    run(test())


def test_what_is_submitted_after_everything_was_stopped_ends_at_once() -> None:
    async def test() -> None:
        client, link = connected()
        client.stop_all()
        (outputs,) = await all_of(client.submit(submission("a", n=2)))
        assert [(o.request_id, o.finish_reason) for o in outputs] == [
            ("a-0", FinishReason.ABORT),
            ("a-1", FinishReason.ABORT),
        ]
        assert (link.sent, client.num_choices) == ([], 0)

    run(test())


def test_stopping_everything_ends_each_choice_as_aborted_with_what_it_had() -> None:
    async def test() -> None:
        client, link = connected()
        started, waiting = client.submit(submission("a", n=2)), client.submit(submission("b"))
        link.take(Outputs([output("a-0", 1), output("a-1", 2, end=FinishReason.STOP)]))
        client.stop_all()
        (outputs,) = await all_of(started)
        assert [(o.request_id, o.token_ids, o.finish_reason) for o in outputs] == [
            ("a-0", [1], FinishReason.ABORT),
            ("a-1", [2], FinishReason.STOP),
        ]
        assert (outputs[0].num_cached_tokens, outputs[0].times.first_token_s) == (5, 3.0)
        ((last,),) = await all_of(waiting)
        assert (last.finish_reason, last.token_ids) == (FinishReason.ABORT, [])
        assert link.sent[2:] == [Abort(["a"]), Abort(["b"])]
        assert client.num_choices == 0

    run(test())


def test_closing_a_client_aborts_its_requests() -> None:
    async def test() -> None:
        client, link = connected()
        stream = client.submit(submission("a"))
        await client.close()
        await client.close()
        assert link.sent[1:] == [Abort(["a"])]
        with pytest.raises(EngineDeadError, match="closed"):
            await all_of(stream)

    run(test())
