"""Settings that schedulers with chunked prefill share: who is admitted, and how much of a step prompts may take."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Scheduler, SchedulerConfig, SchedulerContext
from tokenloom.interfaces.scheduling_policy import StepLimits

__all__ = ["PrefillSettings"]

Count = Annotated[int, Field(ge=1)]


class PrefillSettings(SchedulerConfig):
    """The limits of a scheduler, and those on prompts; see `StepLimits` for what counts as a prompt."""

    admission: PluginChoice = Field(description="Which of those that fit now memory lets start.")

    max_chunk_tokens: Count | None = Field(
        default=None, description="Most prompt tokens of one request in one step; null leaves only the step's budget."
    )
    max_prefill_tokens: Count | None = Field(
        default=None, description="Most prompt tokens of all requests in one step; null leaves only the step's budget."
    )
    max_num_partial_prefills: Count | None = Field(
        default=None, description="Most prompts computed in part at once; null sets no limit."
    )
    max_long_partial_prefills: Count | None = Field(
        default=None,
        description="Most long prompts computed in part at once, others overtake; null sets no limit.",
    )
    long_prefill_token_threshold: Annotated[int, Field(ge=0)] = Field(
        default=2048, description="A prompt with more tokens than this left to compute is long."
    )

    @abstractmethod
    def build(self, context: SchedulerContext) -> Scheduler: ...

    def step_limits(self) -> StepLimits:
        """These settings as limits of every step."""
        return StepLimits(
            max_chunk_tokens=self.max_chunk_tokens,
            max_prefill_tokens=self.max_prefill_tokens,
            max_num_partial_prefills=self.max_num_partial_prefills,
            max_long_partial_prefills=self.max_long_partial_prefills,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
        )
