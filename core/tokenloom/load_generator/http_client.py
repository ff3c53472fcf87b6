"""Sends requests to one endpoint and records what streams back, with little CPU per chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, final

import aiohttp
import msgspec

from tokenloom.errors import RemoteServerError
from tokenloom.load_generator.endpoint import Endpoint
from tokenloom.load_generator.stream_recorder import REFUSING_STATUSES, StreamRecorder

__all__ = ["LoadClient", "StatusError", "open_session"]

_READ_BYTES = 1 << 18
_CONNECT_TIMEOUT_S = 30.0
_KEEP_ALIVE_S = 4.0
"""Usual servers close connections after 5 idle seconds; a request that is sent just then would look like a failure."""
_NAMES_KEPT_S = 300
_DRAIN_TIMEOUT_S = 1.0
_MESSAGE_BYTES = 2000


class StatusError(RemoteServerError):
    """A server answered with an error status."""

    def __init__(self, url: str, status: int, message: str) -> None:
        self.url = url
        self.status = status
        super().__init__(f"{url} answered {status}: {message}")


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session without limits on connections; proxies and cookies of the environment play no part."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S, ttl_dns_cache=_NAMES_KEPT_S)
    cookies = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=cookies, read_bufsize=_READ_BYTES) as session:
        yield session


@final
class LoadClient:
    """Requests to one endpoint over a session.

    Args:
        endpoint: where to.
        session: of `open_session`.
        clock: seconds; what all recorded times are read from.
    """

    def __init__(self, endpoint: Endpoint, session: aiohttp.ClientSession, clock: Callable[[], float]) -> None:
        self.endpoint = endpoint
        self._session = session
        self._clock = clock
        self._timeout = aiohttp.ClientTimeout(total=endpoint.timeout_s, sock_connect=_CONNECT_TIMEOUT_S)

    def at(self, endpoint: Endpoint) -> LoadClient:
        """A client of another endpoint over the same session."""
        return LoadClient(endpoint, self._session, self._clock)

    async def stream(self, body: bytes, recorder: StreamRecorder, start_s: float) -> None:
        """Sends a request and reads its stream to the end.

        Args:
            body: of the request.
            recorder: told all that comes, and every fault.
            start_s: when the load started, on the clock.
        """
        clock, has_answered = self._clock, False
        try:
            async with self._post(body) as response:
                has_answered = True
                if await self._is_stream(response, recorder, start_s):
                    async for data in response.content.iter_any():
                        recorder.take(data, clock() - start_s)
                        if recorder.is_over:
                            break
                    recorder.finish(clock() - start_s)
                    await _drain(response)
        except TimeoutError:
            message = f"no end within {self.endpoint.timeout_s:g} s, after {recorder.num_tokens} tokens"
            recorder.fail("timeout", message, clock() - start_s)
        except (aiohttp.ClientError, OSError) as error:
            kind = "broken_stream" if has_answered else "connection"
            recorder.fail(kind, f"{type(error).__name__}: {error}", clock() - start_s)

    async def _is_stream(self, response: aiohttp.ClientResponse, recorder: StreamRecorder, start_s: float) -> bool:
        """Whether events follow; if not, the recorder knows why."""
        if response.status == 200 and response.content_type == "text/event-stream":
            return True
        text = _message_of(await response.read())
        now_s = self._clock() - start_s
        if response.status in REFUSING_STATUSES:
            recorder.refuse(response.status, text, now_s)
        elif response.status != 200:
            recorder.fail(f"http_{response.status}", text, now_s)
        else:
            recorder.fail("not_a_stream", f"{response.content_type}: {text}", now_s)
        return False

    async def complete(self, body: bytes) -> dict[str, Any]:
        """Sends a request that is no stream and returns the answer.

        Raises:
            StatusError: the server answered with an error status.
            RemoteServerError: it could not be reached, or did not answer with a JSON object.
        """
        async with self._answer(lambda: self._post(body)) as response:
            return await self._json(response)

    async def get(self, url: str) -> dict[str, Any]:
        """Asks for a JSON object. Raises what `complete` does."""
        headers, timeout = self.endpoint.headers, self._timeout
        async with self._answer(lambda: self._session.get(url, headers=headers, timeout=timeout)) as response:
            return await self._json(response)

    def _post(self, body: bytes) -> Any:
        return self._session.post(self.endpoint.url, data=body, headers=self.endpoint.headers, timeout=self._timeout)

    @asynccontextmanager
    async def _answer(self, send: Callable[[], Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with await _begun(send) as response:
                yield response
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            reason = str(error) or type(error).__name__
            raise RemoteServerError(f"no answer from {self.endpoint.base_url}: {reason}") from error

    async def _json(self, response: aiohttp.ClientResponse) -> dict[str, Any]:
        data = await response.read()
        if response.status != 200:
            raise StatusError(str(response.url), response.status, _message_of(data))
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise RemoteServerError(f"{response.url} did not answer with a JSON object: {data[:200]!r}") from error


async def _begun(send: Callable[[], Any]) -> aiohttp.ClientResponse:
    """The answer's head. A server may close a kept connection just when it is used: then nothing came, and the request
    is sent once more over another one."""
    response: aiohttp.ClientResponse
    try:
        response = await send()
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
        response = await send()
    return response


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Reads what follows [DONE]: the end of the body, which frees the connection for another request."""
    if not response.content.at_eof():
        # A request that is done does not fail any more: the connection is merely not used again.
        with suppress(TimeoutError, aiohttp.ClientError):
            await asyncio.wait_for(response.read(), _DRAIN_TIMEOUT_S)


def _message_of(data: bytes) -> str:
    """The message of an error body of any form, or its text."""
    try:
        body = msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return data[:_MESSAGE_BYTES].decode(errors="replace").strip()
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error.get("detail", error)) if isinstance(error, dict) else error
    return str(message)
