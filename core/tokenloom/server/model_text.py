"""The served model's tokenizer and chat template, as the event loop uses them: long texts are encoded in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, final

from tokenloom.engine_process.tokenizer_file import TOKENIZER_SUFFIX, read_tokenizer
from tokenloom.errors import CONTEXT_LENGTH_EXCEEDED, OverloadedError, RequestError
from tokenloom.text.chat_messages import strings_in
from tokenloom.text.chat_template import ChatTemplate
from tokenloom.text.tokenizer import Tokenizer, build_tokenizer

__all__ = ["ModelText", "Prompt", "load_model_text"]

_LONG_CHARS = 4096
"""Encoding this much takes some milliseconds, in which other streams would wait."""

_LEAST_CHARS = 8

Prompt = str | list[int]
Result = TypeVar("Result")


def load_model_text(path: str) -> ModelText:
    """Tokenizer and chat template of a local model, or those that an engine has written down; see `EngineInfo`."""
    tokenizer = read_tokenizer(Path(path)) if path.endswith(TOKENIZER_SUFFIX) else _tokenizer_of_model(Path(path))
    return ModelText(tokenizer, ChatTemplate.for_tokenizer(tokenizer))


def _tokenizer_of_model(path: Path) -> Tokenizer:
    # Loads torch, which a front end does not need otherwise.
    from tokenloom.loader.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    try:
        return build_tokenizer(checkpoint.tokenizer_source(), checkpoint.config.vocab_size)
    finally:
        checkpoint.close()


@final
class ModelText:
    """Encodes prompts and conversations.

    Whatever takes texts raises OverloadedError if a long one would have to wait behind too many others.
    """

    def __init__(self, tokenizer: Tokenizer, chat_template: ChatTemplate, *, max_waiting: int | None = None) -> None:
        """`max_waiting`: most long texts at work and before it; None where whoever asks limits them."""
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._max_waiting = max_waiting
        self._waiting: list[Future[Any]] = []
        # One thread: templates would only take turns, and encoding, which lets the event loop go on, has a core enough.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize")

    async def encode(self, prompts: Sequence[Prompt], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of prompts; ids pass through when the model knows them.

        Raises:
            RequestError: a text cannot be encoded, or an id is unknown.
        """
        tokenizer = self.tokenizer

        def encode_all() -> list[list[int]]:
            return [
                tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
                if isinstance(prompt, str)
                else self._checked(prompt)
                for prompt in prompts
            ]

        return await self._run(encode_all, sum(map(len, prompts)))

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        num_body_bytes: int,
        max_chars: int,
    ) -> list[int]:
        """Token ids of a conversation, as the model's template writes it.

        Args:
            messages: the conversation.
            variables: of the template.
            num_body_bytes: how long it was as JSON.
            max_chars: if messages and variables are longer, they are refused before they are rendered.
        """

        def encode() -> list[int]:
            _check_length(messages, variables, max_chars)
            return self.chat_template.encode_chat(self.tokenizer, messages, **variables)

        return await self._run(encode, num_body_bytes)

    async def decode(self, token_ids: list[int], *, skip_special_tokens: bool, param: str = "prompt") -> str:
        """The text of tokens; unknown ids are refused, by the name of the field `param`."""
        ids = self._checked(token_ids, param)
        return await self._run(
            lambda: self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens), len(token_ids)
        )

    def close(self) -> None:
        """Ends the thread once it is idle."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], Result], num_chars: int) -> Result:
        if num_chars <= _LONG_CHARS:
            return work()
        self._waiting = [future for future in self._waiting if not future.done()]
        num_waiting, limit = len(self._waiting), self._max_waiting
        if limit is not None and num_waiting >= limit:
            raise OverloadedError(
                f"{num_waiting} long texts of other requests wait for their turn, at most {limit} may; try again later",
                resource="texts",
                limit=limit,
                current=num_waiting,
            )
        future = self._thread.submit(work)
        self._waiting.append(future)
        return await asyncio.wrap_future(future)

    def _checked(self, token_ids: list[int], param: str = "prompt") -> list[int]:
        limit = self.tokenizer.vocab_size
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < limit:
            worst = max(token_ids) if min(token_ids) >= 0 else min(token_ids)
            raise RequestError(f"token id {worst!r:.40} is not in the model's vocabulary 0..{limit - 1}", param)
        return token_ids


def _check_length(messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], max_chars: int) -> None:
    num_chars = 0
    for name, value in {**variables, "messages": messages}.items():
        for text in strings_in(value):
            # Short strings cost time, too.
            num_chars += max(len(text), _LEAST_CHARS)
            if num_chars > max_chars:
                raise RequestError(
                    f"messages, tools and chat_template_kwargs have more than {max_chars} characters together; shorten "
                    "them",
                    name if name in ("messages", "tools") else f"chat_template_kwargs.{name}",
                    code=CONTEXT_LENGTH_EXCEEDED,
                )
