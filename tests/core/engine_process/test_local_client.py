"""An engine in a thread: requests come and go in any way, and nothing is left behind."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from tests.core.engine_process.served_stub import stub_served, submission
from tokenloom.engine_process.linked_client import LinkedClient
from tokenloom.engine_process.local_client import LocalEngine
from tokenloom.errors import EngineDeadError, OverloadedError
from tokenloom.interfaces.executor import StepHandle, StepPlan
from tokenloom.testing.engine_harness import EngineHarness


async def rude(client: LinkedClient, request_id: str, draw: random.Random) -> None:
    """Leaves after a random number of outputs, sometimes before the first; sometimes cuts choices first."""
    stream = client.submit(
        submission(request_id, range(draw.randrange(1, 30)), max_tokens=draw.randrange(1, 60), n=draw.randrange(1, 4))
    )
    num_outputs = draw.randrange(0, 20)
    try:
        async for outputs in stream:
            num_outputs -= 1
            if draw.random() < 0.2:
                stream.truncate(outputs[0].request_id, 0, "stop")
            if num_outputs < 0:
                break
    except OverloadedError:
        return
    finally:
        stream.close()
        stream.close()


@pytest.mark.parametrize("seed", [0, 1])
def test_200_readers_that_leave_at_random_leave_nothing_behind(seed: int) -> None:
    harness = EngineHarness(num_blocks=(40,), max_num_seqs=6, max_queued=(24, None))
    draw = random.Random(seed)

    async def test(engine: LocalEngine) -> None:
        client, places = engine.connect(), asyncio.Semaphore(24)

        async def one(request_id: str) -> None:
            async with places:
                await rude(client, request_id, draw)

        await asyncio.gather(*(one(f"r{index}") for index in range(200)))
        stats = await client.call("stats")
        assert (stats["running"], stats["waiting"]) == (0, 0)
        assert stats["kv_usage"]["active"] == 0
        assert client.num_choices == 0
        await client.close()

    with LocalEngine(stub_served(harness)) as engine:
        asyncio.run(test(engine))
    harness.check_idle()


def test_clients_of_several_event_loops_share_an_engine() -> None:
    harness = EngineHarness()

    async def test(engine: LocalEngine) -> int:
        client = engine.connect()
        stream = client.submit(submission("a", max_tokens=5))
        count = sum([len(output.token_ids) async for outputs in stream for output in outputs])
        await client.close()
        return count

    with LocalEngine(stub_served(harness)) as engine:
        assert [asyncio.run(test(engine)) for _ in range(2)] == [5, 5]


def test_requests_of_an_event_loop_that_ended_without_a_word_are_aborted() -> None:
    harness = EngineHarness(max_model_len=10_000, num_blocks=(4000,), checks="cheap")

    async def leave(engine: LocalEngine) -> None:
        stream = engine.connect().submit(submission("a", max_tokens=9_000))
        await anext(stream)

    async def settle(engine: LocalEngine) -> None:
        client = engine.connect()
        while (await client.call("stats"))["running"]:
            pass
        await client.close()

    with LocalEngine(stub_served(harness)) as engine:
        asyncio.run(leave(engine))
        asyncio.run(settle(engine))
    assert harness.engine.stats.num_output_tokens < 9_000
    harness.check_idle()


def test_the_end_of_the_loop_ends_streams_with_an_error() -> None:
    async def test(engine: LocalEngine) -> None:
        stream = engine.connect().submit(submission("a", max_tokens=100))
        await anext(stream)
        with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
            async for _ in stream:
                pass

    def launch(plan: StepPlan) -> StepHandle:
        if next(steps) == 3:
            raise ZeroDivisionError
        return launch_step(plan)

    harness = EngineHarness()
    steps, launch_step = itertools.count(), harness.executor.launch
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(harness.executor, "launch", launch)
        with LocalEngine(stub_served(harness)) as engine:
            asyncio.run(test(engine))
