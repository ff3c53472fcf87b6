"""What each line of a decision trace must hold, so that a damaged file is refused with the line and the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from tokenloom.batch import PreemptMode
from tokenloom.request import FinishReason
from tokenloom.settings_validation import located_fault

__all__ = ["EVENTS", "header_fault", "record_fault"]

_Count = Annotated[int, Field(ge=0)]
_Size = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(allow_inf_nan=False)]
_Parent = Annotated[int, Field(ge=-1)]
_MostLogprobs = Annotated[int, Field(ge=0, le=2**24)]


def _in_pairs(readings: list[float]) -> list[float]:
    if len(readings) % 2 or any(count < 1 or count != int(count) for count in readings[1::2]):
        raise ValueError("must be pairs of a time and how often it was read, at least once")
    return readings


_Clock = Annotated[list[_Seconds], AfterValidator(_in_pairs)]
_BlockIds = list[list[_Count]]
"""Of each KV group."""


class _Block(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Params(_Block):
    """Only what decisions depend on; the others may be anything."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="allow", strict=True)

    max_tokens: _Size | None = None
    min_tokens: _Count = 0
    logprobs: _Count | None = None
    prompt_logprobs: _Count | None = None


class _Arrive(_Block):
    event: Literal["arrive"]
    id: str
    prompt: Annotated[list[_Count], Field(min_length=1)]
    max_total_tokens: _Size
    arrival_s: _Seconds
    seed: int
    stop_token_ids: list[_Count]
    params: _Params
    choice_index: _Count = 0
    choice_set: str = ""
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    ttft_slo_s: _Seconds | None = None
    tpot_slo_s: _Seconds | None = None
    retention_priority: int = 0
    retention_ttl_s: _Seconds | None = None
    clock: _Clock


class _End(_Block):
    event: Literal["end"]
    request: str
    reason: Annotated[FinishReason, Field(strict=False)]
    num_output_tokens: _Count
    clock: _Clock


class _PlanRow(_Block):
    request: str
    computed: _Count
    tokens: _Size
    blocks: list[Annotated[tuple[_Count, _Count, list[_Count]], Field(strict=False)]]
    drafts: list[_Count] = []
    parents: list[_Parent] = []
    max_drafts: _Count = 0


class _Victim(_Block):
    request_id: str
    mode: Annotated[PreemptMode, Field(strict=False)] = PreemptMode.RECOMPUTE
    keep_blocks: _Count = 0


class _Export(_Block):
    request_id: str
    block_ids: _BlockIds


class _Import(_Export):
    sources: _BlockIds


class _Copy(_Block):
    sources: list[_Count]
    targets: list[_Count]


class _Transfers(_Block):
    exports: list[_Export] = []
    imports: list[_Import] = []
    dropped: list[str] = []
    copies: list[_Copy] = []


class _Plan(_Block):
    event: Literal["plan"]
    step: _Count
    rows: list[_PlanRow]
    preempted: list[_Victim]
    removed: list[str]
    transfers: _Transfers
    clock: _Clock


class _ResultRow(_Block):
    request_id: str
    token_ids: list[_Count]
    num_accepted_tokens: _Count = 0
    next_draft_token_ids: list[_Count] = []
    next_draft_parents: list[_Parent] = []
    num_logprobs: _MostLogprobs = 0
    num_prompt_logprobs: _MostLogprobs = 0
    error: str | None = None

    @model_validator(mode="after")
    def _accepted_tokens_are_there(self) -> Self:
        if self.num_accepted_tokens > len(self.token_ids):
            raise ValueError(f"{self.num_accepted_tokens} accepted tokens exceed the {len(self.token_ids)} token_ids")
        return self


class _Result(_Block):
    event: Literal["result"]
    step: _Count
    rows: list[_ResultRow]
    times_s: dict[str, _Seconds]
    lost: list[str]
    clock: _Clock


class _Group(_Block):
    group_id: _Count
    layers: list[str]
    window: _Size | None
    page_bytes: _Size
    pool_id: _Count
    lookahead: _Count
    is_drafter: bool
    takes_drafts: bool = False


class _Facts(_Block):
    max_model_len: Annotated[int, Field(ge=2)]
    vocab_size: _Size
    eos_token_ids: list[_Count]
    kv_groups: Annotated[list[_Group], Field(min_length=1)]
    num_blocks: list[Annotated[int, Field(ge=2, lt=2**31)]]
    block_root: Annotated[str, Field(pattern="^([0-9a-f]{2})*$")]
    device: str
    dtype: str
    operations: str

    @model_validator(mode="after")
    def _groups_have_pools(self) -> Self:
        if [group.group_id for group in self.kv_groups] != list(range(len(self.kv_groups))):
            raise ValueError("the group_id of each of kv_groups must be its place in the list")
        if {group.pool_id for group in self.kv_groups} != set(range(len(self.num_blocks))):
            raise ValueError("num_blocks must name each pool_id of kv_groups, and no other")
        return self


class _Header(_Block):
    format: str
    version: int
    seed: int
    config: dict[str, Any]
    facts: _Facts


_RECORDS: Mapping[str, type[_Block]] = {"arrive": _Arrive, "end": _End, "plan": _Plan, "result": _Result}

EVENTS = tuple(_RECORDS)
"""What a record may be of; see docs/tracing.md."""


def header_fault(header: Mapping[str, Any]) -> str | None:
    """What is wrong with the first line of a trace, beginning with the field; None if it is as it must be."""
    return _fault(_Header, header)


def record_fault(record: Mapping[str, Any]) -> str | None:
    """The same of any other line."""
    event = record.get("event")
    if not isinstance(event, str) or event not in _RECORDS:
        return f"event: must be one of {', '.join(EVENTS)}, got {event!r:.80}"
    return _fault(_RECORDS[event], record)


def _fault(schema: type[_Block], values: Mapping[str, Any]) -> str | None:
    try:
        schema.model_validate(values)
    except ValidationError as error:
        return located_fault(error.errors(include_url=False)[0], "the line")
    return None
