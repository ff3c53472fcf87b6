"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from tokenloom.sampling_fields import MAX_INT32
from tokenloom.sampling_params import MAX_LOGPROBS
from tokenloom.server.generation_body import GenerationBody, StrictBody, ranged
from tokenloom.server.value_limits import free_form

__all__ = ["ChatBody", "Messages", "TemplateVariables", "Tool", "ToolChoice", "Tools"]

MAX_MESSAGES = 4096
MAX_MESSAGE_VALUES = 32_768
MAX_TOOLS = 256
_ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]


class Function(StrictBody):
    """A function that the model may call; `parameters` is a JSON schema of its arguments."""

    name: _ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictBody):
    """What the model may call."""

    type: Literal["function"]
    function: Function


class FunctionName(StrictBody):
    """Which function."""

    name: _ToolName


class ToolChoice(StrictBody):
    """The one tool that the model must call."""

    type: Literal["function"]
    function: FunctionName


Messages = Annotated[list[dict[str, Any]], free_form(max_entries=MAX_MESSAGES, max_values=MAX_MESSAGE_VALUES)]
"""How long their texts may be depends on the model, and is checked where they are encoded."""
Tools = Annotated[list[Tool], free_form(max_entries=MAX_TOOLS, max_values=16_384)]
TemplateVariables = Annotated[dict[str, Any], free_form(max_values=4096)]


class ChatBody(GenerationBody):
    """An answer to a conversation. Messages are checked where the chat template is applied."""

    messages: Messages = Field(
        max_length=MAX_MESSAGES, description='The conversation: {"role": ..., "content": ...}, and what tools returned.'
    )
    logprobs: bool | None = Field(default=None, description="Log-probabilities of the tokens.")
    top_logprobs: int | None = ranged(0, MAX_LOGPROBS, "With so many others; needs logprobs.")
    max_completion_tokens: int | None = ranged(1, MAX_INT32, "As max_tokens.")
    tools: Tools | None = Field(default=None, max_length=MAX_TOOLS, description="What the model may call.")
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = Field(
        default=None, description="auto where there are tools: the model decides."
    )
    parallel_tool_calls: bool | None = Field(default=None, description="Several calls in one reply; true by default.")
    reasoning_effort: str | None = Field(default=None, max_length=32, description="Given to the chat template.")
    include_reasoning: bool | None = Field(default=None, description="False drops what the model thought.")
    add_generation_prompt: bool | None = Field(default=None, description="End with the header of the answer.")
    chat_template_kwargs: TemplateVariables | None = Field(
        default=None, description="Variables of the chat template, such as enable_thinking."
    )

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _one_of_the_forms(cls, value: Any) -> Any:
        function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
        is_named = isinstance(function, dict) and isinstance(function.get("name"), str)
        if value in (None, "none", "auto", "required") or is_named:
            return value
        raise ValueError(
            'must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}, got '
            f"{value!r:.80}"
        )
