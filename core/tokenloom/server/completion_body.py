"""The body of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, field_validator

from tokenloom.sampling_params import MAX_LOGPROBS
from tokenloom.server.generation_body import GenerationBody, ranged

__all__ = ["DEFAULT_MAX_TOKENS", "MAX_PROMPTS", "CompletionBody"]

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 256
MAX_PROMPT_IDS = 2**20
"""Token ids of all prompts together; what the model has room for is checked later."""

_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        _TOKENS,
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": MAX_PROMPTS},
        {"type": "array", "items": _TOKENS, "minItems": 1, "maxItems": MAX_PROMPTS},
    ]
}
_ALLOWED = "must be a string, a list of strings, a list of token ids or a list of lists of token ids"


class CompletionBody(GenerationBody):
    """A text completion. `prompt` is checked into a list of prompts, each of them text or token ids."""

    prompt: Annotated[Any, WithJsonSchema(_PROMPT_SCHEMA)] = Field(description="What to continue: one, or a list.")
    echo: bool | None = Field(default=None, description="The text begins with the prompt.")
    logprobs: int | None = ranged(0, MAX_LOGPROBS, "Log-probabilities of the tokens, with so many others.")

    @field_validator("prompt")
    @classmethod
    def _list_of_prompts(cls, value: Any) -> list[str | list[int]]:
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            raise ValueError(_ALLOWED)
        if not value:
            raise ValueError(f"the list is empty; {_ALLOWED}")
        prompts = [value] if type(value[0]) is int else value
        if len(prompts) > MAX_PROMPTS:
            raise ValueError(f"has {len(prompts)} prompts, at most {MAX_PROMPTS} are allowed; send several requests")
        num_ids = sum(len(prompt) for prompt in prompts if isinstance(prompt, list))
        if num_ids > MAX_PROMPT_IDS:
            raise ValueError(f"has {num_ids} token ids, at most {MAX_PROMPT_IDS} are allowed; send several requests")
        is_text = all(isinstance(prompt, str) for prompt in prompts)
        if not is_text and not all(isinstance(prompt, list) and _are_token_ids(prompt) for prompt in prompts):
            raise ValueError(_ALLOWED)
        return prompts


def _are_token_ids(values: list[Any]) -> bool:
    return set(map(type, values)) <= {int}
