"""Sampling keys of the commands that generate, e.g. `temperature=0 max_tokens=64`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tokenloom.sampling_params import SamplingParams

__all__ = ["SamplingSettings"]


class SamplingSettings(BaseModel):
    """What stands at the top level beside the engine's keys; values are judged by SamplingParams."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_tokens: int | None = Field(default=256, description="Most tokens to generate; null: up to the context limit.")
    min_tokens: int = Field(default=0, description="Tokens before which nothing may stop the output.")
    temperature: float = Field(default=0.0, description="0 is greedy.")
    top_k: int = Field(default=-1, description="Keep the k most likely tokens; -1 keeps all.")
    top_p: float = Field(default=1.0, description="Keep the most likely tokens up to this probability.")
    min_p: float = Field(default=0.0, description="Drop tokens less likely than this fraction of the best.")
    seed: int | None = Field(default=None, description="Seed of the request; null derives one from engine.seed.")
    n: int = Field(default=1, description="Number of choices.")
    stop: tuple[str, ...] = Field(default=(), description="Strings that end the output, e.g. stop=[END].")
    ignore_eos: bool = Field(default=False, description="Go on after the end-of-sequence token.")
    logprobs: int | None = Field(default=None, description="Most likely tokens to report for each one.")

    def params(self) -> SamplingParams:
        """The checked parameters. Raises RequestError naming a field that is out of range."""
        return SamplingParams(**{name: getattr(self, name) for name in type(self).model_fields})
