"""What all routes of one front end share: the engine's client, the model's text, who may use it, and what is free."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import final

from tokenloom.engine_process.linked_client import LinkedClient
from tokenloom.engine_process.messages import EngineInfo
from tokenloom.errors import CONTEXT_LENGTH_EXCEEDED, OverloadedError, RequestError
from tokenloom.observability.front_end_metrics import FrontEndMetrics
from tokenloom.observability.spans import NoSpans, RequestSpans
from tokenloom.server.api_errors import ApiError, api_error, unavailable
from tokenloom.server.auth import ApiKeys
from tokenloom.server.front_end_place import FrontEndPlace
from tokenloom.server.model_text import ModelText, Prompt, load_model_text
from tokenloom.server.places import HeldPlaces, Places
from tokenloom.server.reply_format import ReplyFormat, choose_reply_format
from tokenloom.server.settings import ServerSettings

__all__ = ["Service"]

_log = logging.getLogger(__name__)

_CHARS_PER_TOKEN = 64
"""Longer tokens than this are rare; a prompt of this many characters for each token of the context never fits."""

_MAX_TEXTS_APART = 32
"""Long texts that wait at /tokenize and /detokenize: they take no places, and each may be as long as a body."""

_SUBJECTS = {"prompt": "the prompt has", "messages": "the messages have", "tokens": "the list has"}


@dataclass(frozen=True, slots=True)
class _Loaded:
    text: ModelText
    text_apart: ModelText
    reply_format: ReplyFormat


@final
class Service:
    """One front end's part of the server. Lives in one event loop.

    Attributes:
        client: of the engine.
        settings: of the server.
        keys: who may use it.
        metrics: what the front end counts.
        spans: where finished requests are reported to.
    """

    def __init__(
        self,
        client: LinkedClient,
        settings: ServerSettings,
        *,
        metrics: FrontEndMetrics,
        place: FrontEndPlace | None = None,
        keys: ApiKeys | None = None,
        spans: RequestSpans | None = None,
        load_text: Callable[[str], ModelText] = load_model_text,
    ) -> None:
        """
        Args:
            client: of the engine.
            settings: of the server.
            metrics: what the front end counts.
            place: among the front ends of the server; alone by default.
            keys: who may use it; everybody by default.
            spans: where finished requests are reported to; nowhere by default.
            load_text: called in a thread, with where the engine says the tokenizer is, once it is there.
        """
        self.client = client
        self.settings = settings
        self.metrics = metrics
        self.keys = ApiKeys(()) if keys is None else keys
        self.spans: RequestSpans = NoSpans() if spans is None else spans
        self._place = FrontEndPlace(0, 1, [0]) if place is None else place
        self._places = Places(self._place.reserved, self._place.index)
        self._load_text = load_text
        self._loading: asyncio.Task[_Loaded] | None = None

    @property
    def is_draining(self) -> bool:
        """Whether no more requests are taken; those that run may end."""
        return self._place.is_draining

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Around the reading of a body.

        Raises:
            TimeoutError: it took too long.
            ApiError: 503, the server's time to drain ended before the body had come.
        """
        try:
            async with asyncio.timeout(self.settings.read_timeout_s) as read:
                self._place.reads.add(read)
                try:
                    yield
                finally:
                    self._place.reads.discard(read)
        except TimeoutError:
            if not self._place.has_drained:
                raise
            message = "the server is shutting down, and the request was not complete"
            error = ApiError(503, message, code="server_stopping")
            # The rest of the body is not read.
            error.headers["Connection"] = "close"
            raise error from None

    @property
    def num_engine_restarts(self) -> int:
        """Engines that have died so far."""
        return self._place.num_engine_restarts

    @property
    def info(self) -> EngineInfo:
        """What the engine says of itself.

        Raises:
            ApiError: 503, there is no engine now.
        """
        if not self.client.is_ready:
            raise self.unavailable("the engine is not ready: it is loading, or being restarted; try again in a moment")
        return self.client.info

    async def text(self) -> ModelText:
        """The model's tokenizer and template; the first call loads them.

        Raises:
            ApiError: 503, there is no engine now.
        """
        return (await self._loaded()).text

    async def text_apart(self) -> ModelText:
        """The same with a thread of its own, for work that must not delay requests for tokens; as `text`."""
        return (await self._loaded()).text_apart

    async def reply_format(self) -> ReplyFormat:
        """How the model writes thoughts and calls; as `text`."""
        return (await self._loaded()).reply_format

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the model, the one that is reported first."""
        if self.settings.served_model_names:
            return self.settings.served_model_names
        return (str(self.info.config["model"]["source"]),)

    def check_model(self, name: str | None) -> str:
        """The name under which the model was asked for.

        Raises:
            ApiError: 404, there is no such model here.
        """
        names = self.model_names
        if name is None:
            return names[0]
        if name not in names:
            raise ApiError(
                404,
                f"the model {name!r:.200} is not served here; choose {' or '.join(map(repr, names))}",
                param="model",
                code="model_not_found",
            )
        return name

    def check_serving(self) -> None:
        """Refuses at once what cannot be answered, before the request is even read.

        Raises:
            ApiError: 503, no engine, or the server is stopping.
        """
        if self.is_draining:
            raise self.unavailable("the server is stopping; try another one")
        _ = self.info

    def check_open(self) -> None:
        """As `check_serving`, for requests that will take places.

        Raises:
            ApiError: 429, every place is taken.
        """
        self.check_serving()
        self.reserve(1).release()

    def reserve(self, num_choices: int, param: str = "n") -> HeldPlaces:
        """Takes places for a request; `param` is the field that asks for so many.

        Raises:
            ApiError: 429, too few are free; 400, there are not so many.
        """
        capacity = self._capacity(self.info)
        if capacity is not None and num_choices > capacity:
            raise ApiError(
                400,
                f"the request asks for {num_choices} choices, and this server runs and queues {capacity} at most; ask "
                "for fewer, in several requests",
                param=param,
            )
        try:
            return self._places.reserve(num_choices, capacity)
        except OverloadedError as error:
            raise api_error(error, self.settings.retry_after_s) from None

    @property
    def max_prompt_chars(self) -> int:
        """Longest text that is tokenized."""
        return self.settings.max_prompt_chars or _CHARS_PER_TOKEN * self.info.max_model_len

    def check_length(self, prompts: Iterable[Prompt], field: str = "prompt", *, num_to_come: int = 1) -> None:
        """Refuses prompts that can never fit, before they are tokenized.

        Args:
            prompts: to check.
            field: of the body that they come from: prompt, messages or tokens.
            num_to_come: tokens that must have room behind them.

        Raises:
            RequestError: one is too long.
        """
        for prompt in prompts:
            is_text = isinstance(prompt, str)
            limit = self.max_prompt_chars if is_text else self.info.max_model_len - num_to_come
            if len(prompt) > limit:
                unit = "characters" if is_text else "tokens"
                raise RequestError(
                    f"{_SUBJECTS[field]} {len(prompt)} {unit}, at most {limit} are allowed with "
                    f"max_model_len={self.info.max_model_len}; send less",
                    field,
                    code=CONTEXT_LENGTH_EXCEEDED,
                )

    def unavailable(self, message: str) -> ApiError:
        """A refusal for now."""
        return unavailable(message, self.settings.retry_after_s)

    def close(self) -> None:
        """Ends what was started here; idempotent."""
        loading = self._loading
        if loading is not None and loading.done() and not loading.cancelled() and loading.exception() is None:
            loading.result().text.close()
            loading.result().text_apart.close()

    async def _loaded(self) -> _Loaded:
        if self._loading is None:
            path = self.info.tokenizer_file or self.info.model_path
            self._loading = asyncio.create_task(asyncio.to_thread(self._load, path))
        loading = self._loading
        try:
            # A caller that is cancelled must not end the load that others wait for.
            return await asyncio.shield(loading)
        except Exception as error:
            # Whatever it was, the next caller tries again; that of a file that is gone comes with the next engine.
            if self._loading is loading:
                self._loading = None
                _log.error("the model's tokenizer cannot be loaded: %s: %s", type(error).__name__, error)
            raise

    def _load(self, path: str) -> _Loaded:
        text = self._load_text(path)
        apart = ModelText(text.tokenizer, text.chat_template, max_waiting=_MAX_TEXTS_APART)
        return _Loaded(text, apart, choose_reply_format(self.settings, text.tokenizer))

    def _capacity(self, info: EngineInfo) -> int | None:
        return None if info.max_queued_requests is None else info.max_num_seqs + info.max_queued_requests
