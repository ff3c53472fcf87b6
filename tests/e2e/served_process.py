"""A server in processes of its own, as `tokenloom serve` starts it, and plain HTTP requests to it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, final

import psutil

__all__ = ["ServedProcess", "Stream", "wait_until"]

_START_TIMEOUT_S = 120.0
_REQUEST_TIMEOUT_S = 60.0


def wait_until(what: str, is_so: Callable[[], bool], timeout_s: float = 60.0) -> float:
    """Waits for `is_so()`; returns how long that took, seconds."""
    start_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - start_s < timeout_s, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)
    return time.monotonic() - start_s


@final
class Stream:
    """An answer that streams. Reading goes on in a thread, so that what came is known at any time.

    Attributes:
        events: the data of each event so far, parsed; "[DONE]" as it is.
        ended_s: `time.monotonic` of its end; None while it goes on.
    """

    def __init__(self, connection: http.client.HTTPConnection, body: dict[str, Any]) -> None:
        self.events: list[Any] = []
        self.ended_s: float | None = None
        self._connection = connection
        headers = {"content-type": "application/json", "connection": "close"}
        connection.request("POST", "/v1/completions", json.dumps(body | {"stream": True}), headers)
        self._response = connection.getresponse()
        assert self._response.status == 200, self._response.read()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def error(self) -> str | None:
        """The message of the error that ended it."""
        errors = [event["error"]["message"] for event in self.events if "error" in event]
        return errors[0] if errors else None

    @property
    def finish_reason(self) -> str | None:
        """Why its choice ended."""
        reasons = [c["finish_reason"] for event in self.events if event != "[DONE]" for c in event.get("choices", ())]
        return next((reason for reason in reasons if reason is not None), None)

    def join(self, timeout_s: float = _REQUEST_TIMEOUT_S) -> Stream:
        """Waits for its end."""
        self._reading.join(timeout_s)
        assert not self._reading.is_alive(), f"no end within {timeout_s} s, {len(self.events)} events"
        return self

    def _read(self) -> None:
        try:
            while line := self._response.readline():
                if line.startswith(b"data: "):
                    text = line[6:].strip().decode()
                    self.events.append(text if text == "[DONE]" else json.loads(text))
        except (OSError, http.client.HTTPException):
            # Cut off in the middle; what has come shows that.
            pass
        self.ended_s = time.monotonic()
        self._connection.close()


@final
class ServedProcess:
    """`tokenloom serve` until the end of a `with` block."""

    def __init__(self, folder: Path, *overrides: str, num_threads: int = 1) -> None:
        """`folder` gets the output."""
        self._output = folder / "output.txt"
        program = Path(sys.executable).with_name("tokenloom")
        environment = os.environ | {"OMP_NUM_THREADS": str(num_threads), "PYTHONUNBUFFERED": "1"}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [str(program), "serve", "server.port=0", *overrides], stdout=output, stderr=output, env=environment
            )
        self._port = 0

    @property
    def output(self) -> str:
        """What all processes have written."""
        return self._output.read_text(encoding="utf-8")

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        return self._process.pid

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    def wait_ready(self) -> ServedProcess:
        """Waits until it says where it listens."""
        wait_until(
            "listening", lambda: "listening on" in self.output or self._process.poll() is not None, _START_TIMEOUT_S
        )
        assert "listening on" in self.output, self.output
        self._port = int(self.output.split("listening on http://127.0.0.1:")[1].split()[0])
        return self

    def children(self) -> list[psutil.Process]:
        """All processes below the supervisor."""
        return psutil.Process(self.pid).children(recursive=True)

    def engine(self) -> psutil.Process:
        """The engine's process."""
        found = [child for child in self.children() if child.name() == "tokenloom-eng"]
        assert len(found) == 1, found
        return found[0]

    def front_ends(self) -> list[psutil.Process]:
        """The processes that answer HTTP."""
        return [child for child in self.children() if child.name().startswith("tokenloom-fe")]

    def get(self, path: str) -> tuple[int, Any]:
        """Status and body of a GET request; parsed if it is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_REQUEST_TIMEOUT_S)
        connection.request("GET", path, headers={"connection": "close"})
        return _answer(connection)

    def complete(self, **body: Any) -> tuple[int, Any]:
        """Status and body of a completion that does not stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_REQUEST_TIMEOUT_S)
        headers = {"content-type": "application/json", "connection": "close"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        return _answer(connection)

    def stream(self, **body: Any) -> Stream:
        """A completion that streams, once its head has come."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_REQUEST_TIMEOUT_S)
        return Stream(connection, body)

    def signal(self, number: int) -> None:
        """Sends a signal to the supervisor alone."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Waits for the supervisor's end; its exit code."""
        return self._process.wait(timeout_s)

    def __enter__(self) -> ServedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.output)
        if self._process.poll() is None:
            # Two signals end it at once, and it tidies up.
            self._process.send_signal(signal.SIGINT)
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _answer(connection: http.client.HTTPConnection) -> tuple[int, Any]:
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    is_json = response.headers.get_content_type() == "application/json"
    return response.status, json.loads(text) if is_json and text else text
