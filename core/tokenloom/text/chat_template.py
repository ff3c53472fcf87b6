"""Chat templates: from messages to the text, and the token ids, that the model was trained on.

A template comes with a checkpoint, so it is foreign code: it runs in a sandbox, and whatever it raises is its fault.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any, final

import jinja2

from tokenloom.errors import RequestError
from tokenloom.text.chat_messages import checked_messages, map_strings, strings_in
from tokenloom.text.template_sandbox import TemplateSandbox
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate"]


@final
class ChatTemplate:
    """One template, ready to render. Broken or missing templates are reported at the first use, as RequestError.

    Args:
        source: Jinja source; None for a model without a template.
        named_tokens: variables such as `bos_token` and `eos_token`.
        now: the time that `strftime_now` tells.
    """

    def __init__(
        self,
        source: str | None,
        named_tokens: dict[str, str] | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._source = source
        self._defaults: dict[str, Any] = {
            "bos_token": "",
            "eos_token": "",
            "tools": None,
            "documents": None,
            **(named_tokens or {}),
        }
        self._now = now

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer, source: str | None = None) -> ChatTemplate:
        """The model's own template, or `source` in its place."""
        return cls(tokenizer.chat_template if source is None else source, dict(tokenizer.named_tokens))

    def render(self, messages: object, /, *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """Renders a conversation.

        Args:
            messages: a list of `{"role": ..., "content": ...}`.
            add_generation_prompt: end with the header of the assistant's turn.
            variables: whatever else the template reads (`tools`, `enable_thinking`, ...).

        Raises:
            RequestError: no template, or a broken one; bad messages, or the template refuses them; a variable called
                `messages`.
        """
        return self._render(checked_messages(messages), add_generation_prompt, variables)

    def encode_chat(
        self, tokenizer: Tokenizer, messages: object, /, *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Renders a conversation and encodes it.

        Only the template's own control tokens count: what messages and variables spell stays text. No BOS is added,
        since templates write it themselves.

        Args and Raises: as `render`, and those of `Tokenizer.encode`.
        """
        conversation = checked_messages(messages)
        try:
            return self._encode(tokenizer, conversation, add_generation_prompt, variables)
        except RecursionError:
            raise RequestError("the messages or the template's variables are nested too deeply", "messages") from None

    def _encode(
        self,
        tokenizer: Tokenizer,
        conversation: list[dict[str, Any]],
        add_generation_prompt: bool,
        variables: dict[str, Any],
    ) -> list[int]:
        texts = list(strings_in([conversation, variables]))
        guard = tokenizer.guard
        if not any(map(guard.strings.are_risked_by, texts)):
            text = self._render(conversation, add_generation_prompt, variables)
            return tokenizer.encode(text, add_special_tokens=False)
        marks = guard.strings.marks([*texts, self._source or ""])

        def broken(text: str) -> str:
            return guard.strings.broken(text, marks)

        marked = map_strings(conversation, broken), map_strings(variables, broken)
        return tokenizer.encode_marked(self._render(marked[0], add_generation_prompt, marked[1]), marks)

    def _render(self, messages: list[dict[str, Any]], add_generation_prompt: bool, variables: dict[str, Any]) -> str:
        if "messages" in variables:
            raise RequestError("'messages' is the conversation; no variable can have this name", param="messages")
        values = {**self._defaults, **variables, "messages": messages, "add_generation_prompt": add_generation_prompt}
        sandbox, template = self._compiled
        try:
            return sandbox.render(template, values)
        except Exception as error:  # a template can raise anything
            raise RequestError(
                f"the chat template cannot render these messages: {_detail(error)}", param="messages"
            ) from error

    @cached_property
    def _compiled(self) -> tuple[TemplateSandbox, jinja2.Template]:
        if self._source is None:
            raise RequestError(
                "this model has no chat template; use completion (generate) with a prompt of your own, or pass a "
                "template as Jinja source"
            )
        sandbox = TemplateSandbox(self._now)
        try:
            return sandbox, sandbox.from_string(self._source)
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(f"the chat template is not valid Jinja: line {error.lineno}: {error.message}") from error
        except Exception as error:  # Python compiles what Jinja makes of it, and refuses in ways of its own
            raise RequestError(f"the chat template cannot be compiled: {_detail(error)}") from error


def _detail(error: Exception) -> str:
    return (error.msg if isinstance(error, SyntaxError) else str(error)) or type(error).__name__
