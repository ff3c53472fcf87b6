"""Sampling keys of the commands that generate, e.g. `temperature=0 max_tokens=64`."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator

from tokenloom.compose.overrides import value_word
from tokenloom.errors import RequestError
from tokenloom.sampling_params import SamplingParams
from tokenloom.settings_base import Settings

__all__ = ["SamplingSettings"]

_ADVICE = "; try "
_WRITTEN = {r"\bNone\b": "null", r"\(\)": "[]"}
"""Python's words in the advice of SamplingParams, as patterns, and those of an override."""


class SamplingSettings(Settings):
    """What stands at the top level beside the engine's keys; values are judged by SamplingParams."""

    max_tokens: int | None = Field(default=256, description="Most tokens to generate; null: up to the context limit.")
    min_tokens: int = Field(default=0, description="Tokens before which nothing may stop the output.")
    temperature: float = Field(default=0.0, description="0 is greedy.")
    top_k: int = Field(default=-1, description="Keep the k most likely tokens; -1 keeps all.")
    top_p: float = Field(default=1.0, description="Keep the most likely tokens up to this probability.")
    min_p: float = Field(default=0.0, description="Drop tokens less likely than this fraction of the best.")
    repetition_penalty: float = Field(
        default=1.0, description="Divides (or multiplies, if negative) logits of tokens seen so far; 1 is off."
    )
    presence_penalty: float = Field(default=0.0, description="Subtracted from logits of tokens in the output.")
    frequency_penalty: float = Field(
        default=0.0, description="Subtracted from a token's logit once for each time it stands in the output."
    )
    logit_bias: dict[int, float] = Field(
        default={},
        description="Numbers added to the logits of tokens: logit_bias={50256:-100}.",
        examples=[{50256: -100}],
    )
    allowed_token_ids: tuple[int, ...] | None = Field(default=None, description="The only tokens that may be chosen.")
    bad_words: tuple[str, ...] = Field(
        default=(), description="Strings that must not appear: bad_words=[foo,bar]; \\n in them is a line break."
    )
    seed: int | None = Field(default=None, description="Seed of the request; null derives one from engine.seed.")
    n: int = Field(default=1, description="Number of choices.")
    stop: tuple[str, ...] = Field(
        default=(), description="Strings that end the output: stop=END or stop=[A,B]; \\n in them is a line break."
    )
    stop_token_ids: tuple[int, ...] = Field(default=(), description="Token ids that end the output.")
    logits_processors: dict[str, dict[str, Any]] = Field(
        default={},
        description="Plugins that change logits, with their settings: logits_processors={no_repeat_ngram:{size:3}}.",
        examples=[{"no_repeat_ngram": {"size": 3}}],
    )
    ignore_eos: bool = Field(default=False, description="Go on after the end-of-sequence token.")

    @field_validator("stop", "bad_words", mode="before")
    @classmethod
    def _as_strings(cls, value: object) -> object:
        """One word is a list of one. A shell cannot easily write a line break, so the two characters stand for it."""
        words = [value] if isinstance(value, str) else value
        if not isinstance(words, list | tuple):
            return words
        return tuple(w.replace("\\n", "\n").replace("\\t", "\t") if isinstance(w, str) else w for w in words)

    def params(self) -> SamplingParams:
        """The checked parameters. Raises RequestError naming a field that is out of range."""
        try:
            return SamplingParams(**{name: getattr(self, name) for name in type(self).model_fields})
        except RequestError as error:
            raise self._as_written(error) from error

    def _as_written(self, error: RequestError) -> RequestError:
        """The error with value and advice as one writes them here, where None is null and a tuple is a list."""
        fault, mark, advice = str(error).rpartition(_ADVICE)
        if error.param is None or not mark:
            return error
        value = getattr(self, error.param)
        fault = fault.replace(f"got {value!r}", f"got {value_word(value)}")
        for python, word in _WRITTEN.items():
            advice = re.sub(python, f"{error.param}={word}", advice)
        return RequestError(f"{fault}{mark}{advice}", error.param)
