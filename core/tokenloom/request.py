"""One request: what was asked, and how far it is. `RequestView` is the read-only face that policies see."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from tokenloom.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tokenloom.batch import TokenLogprobs
    from tokenloom.interfaces.contract import PluginChoice
    from tokenloom.interfaces.logits import LogitsConstraint

__all__ = ["FinishReason", "Request", "RequestStatus", "RequestView"]


class RequestStatus(StrEnum):
    """Where a request stands. PREEMPTED and SWAPPED requests wait again, at their arrival's place.

    The KV of a SWAPPED one is kept in host memory.
    """

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended: a stop token or string, a length limit, an abort, or an error of its own."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestView(Protocol):
    """What a policy may read of a request. All counts are tokens, all times seconds on the engine's clock."""

    @property
    def request_id(self) -> str:
        """Unique among live requests."""

    @property
    def status(self) -> RequestStatus:
        """Waiting, running, preempted, swapped or finished."""

    @property
    def arrival_time_s(self) -> float:
        """When it was accepted."""

    @property
    def priority(self) -> int:
        """Lower runs earlier."""

    @property
    def tenant(self) -> str:
        """Whose it is; "" if nobody's."""

    @property
    def ttft_slo_s(self) -> float | None:
        """Target for the time to the first token."""

    @property
    def tpot_slo_s(self) -> float | None:
        """Target for the time per output token."""

    @property
    def retention_priority(self) -> int:
        """Its cached blocks are kept longer if larger."""

    @property
    def retention_ttl_s(self) -> float | None:
        """How long that holds; None for ever."""

    @property
    def first_token_time_s(self) -> float | None:
        """When its first token landed."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""

    @property
    def num_drafts(self) -> int:
        """Drafts waiting to be verified."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV has landed; 0 while it waits."""

    @property
    def num_inflight_tokens(self) -> int:
        """Tokens of steps launched but not landed."""

    @property
    def num_placeholder_tokens(self) -> int:
        """Tokens that steps in flight will yield."""

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache when it was first admitted."""

    @property
    def num_preemptions(self) -> int:
        """How often it lost its memory."""

    @property
    def max_total_tokens(self) -> int:
        """Prompt and output never exceed this."""


@dataclass(slots=True, eq=False)
class Request:
    """A request and its progress. Only the engine's commit writes to the fields below the line.

    `num_computed_tokens` counts tokens whose KV has landed; `num_inflight_tokens` those of steps launched but not
    landed; `num_placeholder_tokens` those that steps in flight will yield and whose ids are not known yet (0 at depth
    1). A step is due while
    num_tokens + num_placeholder_tokens + num_drafts > num_computed_tokens + num_inflight_tokens.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    """Seed of the noise that this request samples with."""
    max_total_tokens: int
    """Prompt and output together never exceed this: the least of the model's, the pool's and the request's limit."""
    choice_index: int = 0
    choice_set: str = ""
    """Equal for the choices of one prompt, if there are several; they can share what the prompt's last block holds."""
    arrival_time_s: float = 0.0
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    stop_token_ids: frozenset[int] = frozenset()
    """Token ids that end the request, end-of-sequence ids included unless ignored."""
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    retention_priority: int = 0
    retention_ttl_s: float | None = None
    constraint: LogitsConstraint | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token id sequences that must not appear; what `params.bad_words` is in tokens."""
    logits_processors: tuple[PluginChoice, ...] = ()
    """What `params.logits_processors` names, validated, in order."""

    # ---- progress ----
    status: RequestStatus = RequestStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    draft_token_ids: list[int] = field(default_factory=list)
    draft_parents: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_inflight_tokens: int = 0
    num_placeholder_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    max_computed_tokens: int = 0
    """Highest frontier ever reached; positions below it that run again count as recomputed."""
    first_scheduled_time_s: float | None = None
    first_token_time_s: float | None = None
    finish_time_s: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the prompt's tokens from the second on, as far as they are known."""

    @property
    def num_missing_prompt_logprobs(self) -> int:
        """Tokens of the prompt whose logprobs are still to come; of several choices, the first computes them."""
        if self.params.prompt_logprobs is None or self.choice_index > 0:
            return 0
        return len(self.prompt_token_ids) - 1 - len(self.prompt_logprobs)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_drafts(self) -> int:
        return len(self.draft_token_ids)

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED
