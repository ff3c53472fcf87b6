"""Fields that completions and chat completions share. Types are checked here, ranges by `SamplingParams`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator

from tokenloom.sampling_fields import MAX_INT32
from tokenloom.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_NUM_CHOICES,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    MIN_REPETITION_PENALTY,
)
from tokenloom.server.value_limits import at_most, free_form

__all__ = ["MAX_STOP_CHARS", "GenerationBody", "StreamOptions", "StrictBody", "ranged"]

MAX_ALLOWED_TOKEN_IDS = 16_384

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_BIASES = 1024
MAX_LABEL_CHARS = 256
MAX_CHOICE_STRINGS = 10_000
MAX_PROCESSORS = 16
_PROCESSORS = free_form(max_entries=MAX_PROCESSORS, max_values=256, max_chars=4096)
_SCHEMA_WEIGHT = free_form(max_values=16_384)


class StrictBody(BaseModel):
    """A JSON object whose values are taken as they are: "1" is no number, true is no 1."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, frozen=True, extra="ignore", protected_namespaces=())


def ranged(low: float, high: float, description: str) -> Any:
    """A number that may be left out. Its range is documented here and checked by `SamplingParams`."""
    return Field(default=None, description=description, json_schema_extra={"minimum": low, "maximum": high})


def _label(description: str) -> Any:
    return Field(default=None, description=description, min_length=1, max_length=MAX_LABEL_CHARS)


class StreamOptions(StrictBody):
    """What a stream holds beside its text."""

    include_usage: bool | None = Field(default=None, description="One more chunk with the usage, before [DONE].")
    continuous_usage_stats: bool | None = Field(default=None, description="The usage so far in every chunk.")


class GenerationBody(StrictBody):
    """How to sample, when to end, and what to return; None is the default of each."""

    model: str | None = Field(default=None, description="One of /v1/models; the only one there is by default.")
    n: int | None = ranged(1, MAX_NUM_CHOICES, "Choices for each prompt.")
    max_tokens: int | None = ranged(0, MAX_INT32, "Most tokens to generate.")
    min_tokens: int | None = ranged(0, MAX_INT32, "No end before so many tokens.")
    temperature: FiniteFloat | None = ranged(0, MAX_TEMPERATURE, "0 is greedy; 1 by default.")
    top_p: FiniteFloat | None = ranged(0, 1, "Keep the most likely tokens up to this probability.")
    top_k: int | None = ranged(-1, MAX_INT32, "Keep the k most likely tokens; -1 or 0 keeps all.")
    min_p: FiniteFloat | None = ranged(0, 1, "Drop tokens less likely than this fraction of the most likely one.")
    presence_penalty: FiniteFloat | None = ranged(-MAX_PENALTY, MAX_PENALTY, "Against tokens that were generated.")
    frequency_penalty: FiniteFloat | None = ranged(-MAX_PENALTY, MAX_PENALTY, "The same, once for each time.")
    repetition_penalty: FiniteFloat | None = ranged(
        MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY, "Divides logits of tokens in prompt and output; 1 is off."
    )
    logit_bias: Annotated[dict[str, FiniteFloat] | None, at_most(MAX_BIASES)] = Field(
        default=None,
        max_length=MAX_BIASES,
        description=f"Token id -> number from {-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g} that is added to its logit.",
    )
    allowed_token_ids: list[int] | None = Field(
        default=None, fail_fast=True, max_length=MAX_ALLOWED_TOKEN_IDS, description="Only these can be chosen."
    )
    bad_words: list[str] | None = Field(default=None, max_length=MAX_BAD_WORDS, description="Must not appear.")
    logits_processors: Annotated[dict[str, dict[str, Any] | None] | None, _PROCESSORS] = Field(
        default=None, description="Plugins of kind logits_processor by name, each with its settings."
    )
    seed: int | None = ranged(-(2**63), 2**63 - 1, "Equal seeds give equal tokens.")
    stop: str | list[str] | None = Field(
        default=None, description=f"Strings that end the text: one, or up to {MAX_STOPS}."
    )
    stop_token_ids: list[int] | None = Field(
        default=None, max_length=MAX_STOP_TOKEN_IDS, description="Token ids that end the text."
    )
    include_stop_str_in_output: bool | None = Field(default=None, description="Keep what ended the text.")
    ignore_eos: bool | None = Field(default=None, description="Go on after the end-of-sequence token.")
    skip_special_tokens: bool | None = Field(default=None, description="Leave special tokens out of the text.")
    add_special_tokens: bool | None = Field(default=None, description="Put BOS and the like around the prompt.")
    prompt_logprobs: int | None = ranged(0, 20, "Log-probabilities of the prompt's tokens, with so many others.")
    return_token_ids: bool | None = Field(default=None, description="Token ids beside the text.")
    stream: bool | None = Field(default=None, description="Answer in server-sent events.")
    stream_options: StreamOptions | None = None
    response_format: Annotated[dict[str, Any] | None, _SCHEMA_WEIGHT] = Field(
        default=None, description='{"type": "text" | "json_object" | "json_schema", "json_schema": {"schema": ...}}'
    )
    regex: str | None = Field(default=None, description="The text matches this regular expression.")
    grammar: str | None = Field(default=None, description="The text matches this Lark grammar.")
    structured_outputs: Annotated[dict[str, Any] | None, _SCHEMA_WEIGHT] = Field(
        default=None, description="One of json, regex, choice, grammar, json_object, as vLLM spells it."
    )
    guided_json: Annotated[dict[str, Any] | str | None, _SCHEMA_WEIGHT] = Field(
        default=None, description="JSON schema (vLLM's older name)."
    )
    guided_regex: str | None = Field(default=None, description="As regex (vLLM's older name).")
    guided_choice: list[str] | None = Field(
        default=None,
        fail_fast=True,
        max_length=MAX_CHOICE_STRINGS,
        description="One of these strings (vLLM's older name).",
    )
    guided_grammar: str | None = Field(default=None, description="As grammar (vLLM's older name).")
    priority: int | None = ranged(-MAX_INT32, MAX_INT32, "Lower runs earlier, with schedulers that look at it.")
    cache_salt: str | None = _label("Only requests with the same salt share cached blocks.")
    ttft_slo_s: FiniteFloat | None = ranged(0, MAX_INT32, "Target for the time to the first token, seconds.")
    tpot_slo_s: FiniteFloat | None = ranged(0, MAX_INT32, "Target for the time per output token, seconds.")
    retention_priority: int | None = ranged(-MAX_INT32, MAX_INT32, "Cached blocks are kept longer if larger.")
    retention_ttl_s: FiniteFloat | None = ranged(0, MAX_INT32, "How long retention_priority holds, seconds.")
    user: str | None = Field(default=None, description="For your own records; changes nothing.")

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_strings(cls, value: Any) -> Any:
        if isinstance(value, list) and len(value) > MAX_STOPS:
            raise ValueError(f"may hold {MAX_STOPS} strings at most, got {len(value)}")
        is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if value is None or isinstance(value, str) or is_list:
            return value
        raise ValueError(f"must be a string or a list of strings, got {value!r:.80}")

    @field_validator("guided_json", mode="before")
    @classmethod
    def _schema(cls, value: Any) -> Any:
        if value is None or isinstance(value, str | dict):
            return value
        raise ValueError(f"must be a JSON schema, as an object or as text, got {value!r:.80}")

    @property
    def wants_usage_chunk(self) -> bool:
        """Whether a stream ends with a chunk that holds the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_usage_always(self) -> bool:
        """Whether every chunk holds the usage so far."""
        return self.wants_usage_chunk and bool(self.stream_options and self.stream_options.continuous_usage_stats)
