"""`tokenloom serve` as processes: what becomes of streams when one of them dies, hangs or is told to end."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.served_process import ServedProcess, Stream, wait_until
from tests.tiny_model import write_tiny_llama

pytestmark = pytest.mark.slow

LONG = 60_000
STEP_TIMEOUT_S = 4.0
_TIMED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?P<level>\w+) (?P<name>[\w.]+): ")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_llama(folder, with_tokenizer=True, max_position=100_000, num_layers=1)
    return str(folder)


def start(folder: Path, model: str, *overrides: str) -> ServedProcess:
    return ServedProcess(folder, f"model={model}", "server.served_model_names=[m]", "cache.num_blocks=9000", *overrides)


def endless(server: ServedProcess) -> Stream:
    stream = server.stream(model="m", prompt="abc", max_tokens=LONG, ignore_eos=True)
    wait_until("the first events", lambda: len(stream.events) > 3)
    return stream


def health(server: ServedProcess) -> int:
    return server.get("/health")[0]


def works(server: ServedProcess) -> bool:
    status, answer = server.complete(model="m", prompt="abc", max_tokens=3, ignore_eos=True)
    return status == 200 and answer["usage"]["completion_tokens"] == 3


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    """Two workers; tests kill this and that of it, and leave it whole again."""
    folder = tmp_path_factory.mktemp("server")
    options = ("server.workers=2", f"server.step_timeout_s={STEP_TIMEOUT_S}")
    with start(folder, model, *options) as process:
        yield process.wait_ready()


@pytest.mark.parametrize(
    ("is_killed", "num_streams"), [(True, 4), (False, 4), (False, 0)], ids=["killed", "hung", "hung-idle"]
)
def test_an_engine_that_dies_ends_its_streams_and_comes_back(
    server: ServedProcess, is_killed: bool, num_streams: int
) -> None:
    streams = [endless(server) for _ in range(num_streams)]
    engine = server.engine()
    engine.send_signal(signal.SIGKILL if is_killed else signal.SIGSTOP)
    struck_s = time.monotonic()
    for stream in streams:
        stream.join()
    ended_s = [stream.ended_s - struck_s for stream in streams if stream.ended_s is not None]
    assert max(ended_s, default=0.0) < (2.0 if is_killed else STEP_TIMEOUT_S + 4.0), ended_s
    assert all(stream.error is not None for stream in streams), [stream.events[-2:] for stream in streams]
    expected = "killed by SIGKILL" if is_killed else "the engine hung"
    assert all(expected in str(stream.error) for stream in streams)
    if streams:
        assert health(server) == 503
    else:
        wait_until("that it is noticed", lambda: health(server) == 503)
    status, refused = server.complete(model="m", prompt="abc")
    assert (status, refused["error"]["code"]) == (503, "engine_unavailable")
    wait_until("recovery", lambda: health(server) == 200)
    # The other worker may hear of it a moment later.
    wait_until("requests", lambda: works(server) and works(server))
    assert server.engine().pid != engine.pid


def test_a_front_end_that_dies_is_replaced_and_its_requests_end(server: ServedProcess) -> None:
    streams = [endless(server) for _ in range(6)]
    before = {child.pid for child in server.front_ends()}
    assert len(before) == 2
    for front_end in server.front_ends():
        front_end.kill()
    for stream in streams:
        stream.join()
    assert all(stream.finish_reason is None for stream in streams)

    def are_others() -> bool:
        now = {child.pid for child in server.front_ends()}
        return len(now) == 2 and not before & now

    def is_idle() -> bool:
        metrics = server.get("/metrics")[1]
        return 'tokenloom:num_requests_running{engine="0",model_name="m"} 0.0' in metrics

    wait_until("two others", are_others)
    wait_until("no request of the dead", is_idle)
    assert works(server)


def test_200_clients_that_leave_at_random_leave_nothing_behind(server: ServedProcess) -> None:
    draw = random.Random(0)
    bodies = [
        {"model": "m", "prompt": "abc" * draw.randrange(1, 40), "max_tokens": 9_000, "ignore_eos": True}
        | {"stream": draw.random() < 0.5, "n": draw.randrange(1, 4)}
        for _ in range(200)
    ]

    async def leave(body: dict[str, Any], after_s: float, places: asyncio.Semaphore) -> None:
        async with places:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            text = json.dumps(body).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text)}\r\n"
            writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + text)
            await asyncio.sleep(after_s)
            writer.close()

    async def leave_all() -> None:
        places = asyncio.Semaphore(30)
        await asyncio.gather(*(leave(body, draw.uniform(0.0, 0.3), places) for body in bodies))

    asyncio.run(leave_all())

    def left() -> list[str]:
        lines = server.get("/metrics")[1].splitlines()
        watched = ("tokenloom:num_requests_running", "tokenloom:num_requests_waiting", "tokenloom:kv_blocks{")
        lines = [line for line in lines if line.startswith(watched) and not line.endswith(" 0.0")]
        return [line for line in lines if 'state="free"' not in line and 'state="cached"' not in line]

    assert wait_until("nothing left", lambda: not left()) < 5.0
    assert works(server)


def test_after_sigterm_what_can_end_ends_well_and_the_rest_in_order(model: str, tmp_path: Path) -> None:
    with start(
        tmp_path, model, "server.drain_timeout_s=2", "server.access_log=true", "server.log_level=error"
    ) as server:
        server.wait_ready()
        children, folders = server.children(), _folders()
        long, short = endless(server), server.stream(model="m", prompt="abc", max_tokens=40, ignore_eos=True)
        server.signal(signal.SIGTERM)
        assert short.join().finish_reason == "length"
        assert (short.error, short.events[-1]) == (None, "[DONE]")
        assert "shutting down" in str(long.join().error)
        assert long.events[-1] == "[DONE]"
        assert server.wait() == 0
        wait_until("no process left", lambda: not any(_runs(child) for child in children))
        assert _folders() < folders
        log = [line for line in server.output.splitlines() if not line.startswith("listening")]
        assert re.search(r"^listening .*, cpu, float32, threads \d", server.output)
        times = [_TIMED.match(line) for line in log]
        assert all(times), log
        # The access log alone: it was asked for, whatever else is worth a line.
        assert {time["level"] + time["name"] for time in times if time} == {"INFOuvicorn.access"}, log
        assert any("POST /v1/completions" in line and line.endswith(" 200") for line in log)


def test_nothing_outlives_a_supervisor_that_is_killed(model: str, tmp_path: Path) -> None:
    """And two servers live beside each other; a second Ctrl-C ends one at once."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with start(one, model) as killed, start(two, model, "server.drain_timeout_s=60") as interrupted:
        for server in (killed, interrupted):
            assert works(server.wait_ready())
        assert killed.port != interrupted.port
        taken = _fail("serve", f"model={model}", f"server.port={killed.port}")
        assert f"server.port={killed.port} is in use on 127.0.0.1" in taken
        assert "server.port=0" in taken
        children = killed.children()
        stream = endless(killed)
        killed.signal(signal.SIGKILL)
        assert stream.join().finish_reason is None
        wait_until("no process left", lambda: not any(_runs(child) for child in children))
        children = interrupted.children()
        stream = endless(interrupted)
        interrupted.signal(signal.SIGINT)
        wait_until("the end of listening", lambda: not _accepts(interrupted))
        assert stream.ended_s is None
        interrupted.signal(signal.SIGINT)
        assert interrupted.wait() == 128 + signal.SIGINT
        assert stream.join().finish_reason is None
        wait_until("no process left", lambda: not any(_runs(child) for child in children))


@pytest.mark.parametrize(("word", "expected"), [("server.prot=1", "did you mean server.port"), ("model=./no", "./no")])
def test_a_server_that_cannot_start_says_why_and_nothing_else(word: str, expected: str) -> None:
    assert expected in _fail("serve", "server.port=0", word)


def _fail(*words: str) -> str:
    """What a command says that fails because of a mistake."""
    command = [str(Path(sys.executable).with_name("tokenloom")), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    return done.stderr


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _accepts(server: ServedProcess) -> bool:
    try:
        return bool(server.get("/health"))
    except OSError:
        return False


def _folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("tokenloom-serve-*"))
