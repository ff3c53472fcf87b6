"""A server that answers some requests, and that then cannot be reached any more."""

from __future__ import annotations

import pytest

from tokenloom.load_generator import traffic
from tokenloom.load_generator.http_client import LoadClient
from tokenloom.load_generator.stream_recorder import StreamRecorder

__all__ = ["lose_server_after"]


def lose_server_after(num_requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams behind the first ones find no connection, and nobody waits before the next try."""
    stream, num_sent = LoadClient.stream, 0

    async def send(client: LoadClient, body: bytes, recorder: StreamRecorder, start_s: float) -> None:
        nonlocal num_sent
        num_sent += 1
        if num_sent <= num_requests:
            await stream(client, body, recorder, start_s)
        else:
            recorder.fail("connection", "refused", client._clock() - start_s)

    monkeypatch.setattr(LoadClient, "stream", send)
    monkeypatch.setattr(traffic, "_FIRST_PAUSE_S", 0.0)
