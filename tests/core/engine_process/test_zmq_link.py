"""Links over ZeroMQ: messages arrive as they were sent, and nobody waits for one that does not read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import zmq

from tests.core.engine_process.served_stub import INFO, stub_served, submission
from tokenloom.batch import TokenLogprobs
from tokenloom.engine_output import EngineOutput, RequestTimes
from tokenloom.engine_process.engine_loop import EngineLoop
from tokenloom.engine_process.fault import Fault
from tokenloom.engine_process.linked_client import LinkedClient
from tokenloom.engine_process.messages import (
    Abort,
    Call,
    Failed,
    FromEngine,
    FrontEndGone,
    Hello,
    Outputs,
    Refused,
    Reply,
    Stop,
    Submit,
    ToEngine,
    Truncate,
)
from tokenloom.engine_process.zmq_link import ZmqControl, ZmqEngineLink, ZmqFrontEndLink
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.request import FinishReason
from tokenloom.request_factory import RequestTraits
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.engine_harness import EngineHarness

TIMEOUT_S = 30.0


@pytest.fixture
def address() -> Iterator[str]:
    # Not pytest's own folder: a socket's path may have a hundred characters.
    with TemporaryDirectory() as folder:
        yield f"ipc://{Path(folder) / 'engine'}"


@pytest.fixture
def engine_link(address: str) -> Iterator[ZmqEngineLink]:
    link = ZmqEngineLink(address)
    yield link
    link.close()


def receive(link: ZmqEngineLink, count: int) -> list[tuple[str, ToEngine]]:
    messages: list[tuple[str, ToEngine]] = []
    while len(messages) < count:
        messages += (got := link.receive(TIMEOUT_S))
        assert got, f"{len(messages)} of {count} messages came"
    return messages


RICH = Submit(
    "a",
    [1, 2],
    SamplingParams(
        logit_bias={3: 1.5},
        allowed_token_ids=[1, 2],
        stop=["x"],
        bad_words=["y"],
        n=2,
        seed=-5,
        logits_processors={"no_repeat_ngram": {"size": 3}},
    ),
    RequestTraits(priority=-1, tenant="t", cache_salt="s", ttft_slo_s=1.0),
    GrammarSpec("json_schema", "{}"),
    [[4, 5]],
    12.5,
)
TO_ENGINE: list[ToEngine] = [
    Hello(),
    RICH,
    Abort(["a", "b"]),
    Truncate("a", 3, "stop"),
    Call(1, "kv_map", {"max_cells": 3}),
    FrontEndGone("x"),
    Stop(),
]
LOGPROBS = TokenLogprobs(7, -1.0, ((3, -0.5), (7, -1.0)))
FROM_ENGINE: list[FromEngine] = [
    INFO,
    Outputs(
        [
            EngineOutput(
                "a", [1], (LOGPROBS,), FinishReason.STOP, "x", 5, None, 3.5, RequestTimes(1.0), (None, LOGPROBS)
            ),
            EngineOutput("b", [], (), FinishReason.ERROR, 3, 0, "failed", 3.5, RequestTimes(1.0, 2.0, 3.0, 4.0)),
        ]
    ),
    Refused("a", Fault("overloaded", "full", retry_after_s=2.0)),
    Refused("b", Fault("request", "too long", "prompt", "context_length_exceeded")),
    Reply(1, {"x": [1, 2.5, None]}),
    Reply(2, fault=Fault("engine_dead", "gone")),
    Failed("dead"),
]


def test_every_message_arrives_as_it_was_sent(address: str, engine_link: ZmqEngineLink) -> None:
    async def test() -> list[FromEngine]:
        link, taken, is_complete = ZmqFrontEndLink(address, "x"), list[FromEngine](), asyncio.Event()

        def take(message: FromEngine) -> None:
            taken.append(message)
            if len(taken) == len(FROM_ENGINE):
                is_complete.set()

        link.start(take)
        for message in TO_ENGINE:
            link.send(message)
        got = await asyncio.to_thread(receive, engine_link, len(TO_ENGINE))
        assert got == [("x", message) for message in TO_ENGINE]
        for answer in FROM_ENGINE:
            engine_link.send("x", answer)
        await asyncio.wait_for(is_complete.wait(), TIMEOUT_S)
        link.close()
        return taken

    assert asyncio.run(test()) == FROM_ENGINE


def test_sending_never_waits_for_a_front_end_that_does_not_read(address: str, engine_link: ZmqEngineLink) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, b"slow")
    socket.connect(address)
    socket.send(msgspec.msgpack.encode(Hello()))
    assert receive(engine_link, 1) == [("slow", Hello())]
    message = Outputs([EngineOutput("a", [1], (), None, None, 0, None, 1.0, RequestTimes(1.0))] * 64)
    for _ in range(3000):
        engine_link.send("slow", message)
    # They are all there when it comes to it.
    for _ in range(3000):
        assert socket.poll(round(1000 * TIMEOUT_S))
        socket.recv()
    socket.close(linger=0)
    context.term()
    engine_link.send("slow", message)
    engine_link.send("nobody", message)


def test_what_cannot_be_read_is_refused_by_its_request_id(address: str, engine_link: ZmqEngineLink) -> None:
    bad = msgspec.to_builtins(submission("a")) | {"prompt_token_ids": ["x"]}
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(address)
        socket.send(msgspec.msgpack.encode(bad))
        socket.send(msgspec.msgpack.encode(Hello()))
        assert [message for _, message in receive(engine_link, 1)] == [Hello()]
        assert socket.poll(round(1000 * TIMEOUT_S))
        refused = msgspec.msgpack.decode(socket.recv(), type=FromEngine)
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.fault.kind) == ("a", "internal")


def test_a_loop_serves_clients_over_it_until_it_is_stopped(address: str) -> None:
    harness = EngineHarness()

    async def test() -> None:
        is_ready = asyncio.Event()
        client = LinkedClient(on_ready=is_ready.set)
        client.attach(ZmqFrontEndLink(address, "x"))
        await asyncio.wait_for(is_ready.wait(), TIMEOUT_S)

        async def tokens(request_id: str) -> int:
            stream = client.submit(submission(request_id, max_tokens=30))
            return sum([len(output.token_ids) async for outputs in stream for output in outputs])

        assert await asyncio.gather(*(tokens(f"r{i}") for i in range(8))) == [30] * 8
        assert await client.call("ping") == "pong"
        await client.close()

    loop = EngineLoop(stub_served(harness), ZmqEngineLink(address))
    thread = threading.Thread(target=loop.run)
    thread.start()
    asyncio.run(test())
    control = ZmqControl(address)
    control.send(Stop())
    thread.join(TIMEOUT_S)
    control.close()
    assert not thread.is_alive()
    harness.check_idle()
