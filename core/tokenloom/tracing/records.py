"""Plain data of a decision trace: requests, plans and results as JSON objects, and back. Defaults are left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from pydantic_core import to_jsonable_python

from tokenloom.batch import Preemption, RowPlan, RowResult, StepPlan, StepResult, TokenLogprobs
from tokenloom.interfaces.executor import KVGroupSpec, ModelFacts
from tokenloom.request import Request
from tokenloom.sampling_params import SamplingParams

__all__ = [
    "Record",
    "facts_from",
    "facts_record",
    "plan_record",
    "request_from",
    "request_record",
    "result_from",
    "result_record",
]

Record = dict[str, Any]
"""One JSON object."""

_ASKED = (
    *("choice_index", "choice_set", "priority", "tenant", "cache_salt", "ttft_slo_s", "tpot_slo_s"),
    *("retention_priority", "retention_ttl_s"),
)
"""Fields of a request, beside its tokens, that policies and caches may decide by."""

_DECISIVE_PARAMS = ("max_tokens", "min_tokens", "logprobs", "prompt_logprobs")
"""Sampling parameters that the core itself acts on; the others only change which tokens come out."""

_UNKNOWN = TokenLogprobs(0, 0.0)
"""Stands for logprobs, of which a trace keeps the number alone."""


def request_record(request: Request) -> Record:
    """A request as it arrives."""
    defaults = {field.name: field.default for field in fields(Request)}
    asked = {name: getattr(request, name) for name in _ASKED}
    params = {field.name: getattr(request.params, field.name) for field in fields(SamplingParams)}
    changed = {name: value for name, value in params.items() if value != getattr(SamplingParams(), name)}
    return {
        "id": request.request_id,
        "prompt": list(request.prompt_token_ids),
        "max_total_tokens": request.max_total_tokens,
        "arrival_s": request.arrival_time_s,
        "seed": request.seed,
        "stop_token_ids": sorted(request.stop_token_ids),
        "params": to_jsonable_python(changed, fallback=repr),
        **{name: value for name, value in asked.items() if value != defaults[name]},
    }


def request_from(record: Mapping[str, Any]) -> Request:
    """The request that a record describes, as far as decisions depend on it."""
    params = record["params"]
    return Request(
        request_id=record["id"],
        prompt_token_ids=list(record["prompt"]),
        params=SamplingParams(**{name: params[name] for name in _DECISIVE_PARAMS if name in params}),
        seed=record["seed"],
        max_total_tokens=record["max_total_tokens"],
        arrival_time_s=record["arrival_s"],
        stop_token_ids=frozenset(record["stop_token_ids"]),
        **{name: record[name] for name in _ASKED if name in record},
    )


def plan_record(plan: StepPlan, preemptions: Sequence[Preemption]) -> Record:
    """What was decided for a step: the victims, and the plan as the core carried it out, with its blocks."""
    moves = dataclasses.asdict(plan.transfers) if plan.transfers else {}
    return {
        "step": plan.step_id,
        "rows": [_row_record(row) for row in plan.rows],
        "preempted": [_changed(victim) for victim in preemptions],
        "removed": list(plan.removed),
        "transfers": to_jsonable_python({name: moved for name, moved in moves.items() if moved}),
    }


def _row_record(row: RowPlan) -> Record:
    record: Record = {
        "request": row.request_id,
        "computed": row.num_computed_tokens,
        "tokens": row.num_scheduled_tokens,
        # Per KV group: leading blocks given back, blocks kept, ids of new ones.
        "blocks": [[u.num_null_blocks, u.num_kept_blocks, list(u.new_block_ids)] for u in row.block_updates],
    }
    if row.draft_token_ids:
        record["drafts"] = list(row.draft_token_ids)
    if row.draft_parents:
        record["parents"] = list(row.draft_parents)
    if row.max_drafts:
        record["max_drafts"] = row.max_drafts
    return record


def result_record(result: StepResult) -> Record:
    """What came of a step. Of logprobs, only how many there are."""
    return {
        "step": result.step_id,
        "rows": [_row_result_record(row) for row in result.rows],
        "times_s": dict(result.times_s),
        "lost": list(result.lost),
    }


def _row_result_record(row: RowResult) -> Record:
    record = {name: value for name, value in _changed(row).items() if name not in ("logprobs", "prompt_logprobs")}
    counts = {"num_logprobs": len(row.logprobs), "num_prompt_logprobs": len(row.prompt_logprobs)}
    return {**record, **{name: count for name, count in counts.items() if count}}


def result_from(record: Mapping[str, Any]) -> StepResult:
    """The result that a record describes."""
    rows = tuple(_row_result_from(row) for row in record["rows"])
    return StepResult(record["step"], rows, record["times_s"], tuple(record["lost"]))


def _row_result_from(record: Mapping[str, Any]) -> RowResult:
    return RowResult(
        request_id=record["request_id"],
        token_ids=list(record["token_ids"]),
        num_accepted_tokens=record.get("num_accepted_tokens", 0),
        next_draft_token_ids=tuple(record.get("next_draft_token_ids", ())),
        next_draft_parents=tuple(record.get("next_draft_parents", ())),
        logprobs=(_UNKNOWN,) * record.get("num_logprobs", 0),
        prompt_logprobs=(_UNKNOWN,) * record.get("num_prompt_logprobs", 0),
        error=record.get("error"),
    )


def facts_record(facts: ModelFacts) -> Record:
    """What decisions depend on, of the model."""
    return {
        "max_model_len": facts.max_model_len,
        "vocab_size": facts.vocab_size,
        "eos_token_ids": list(facts.eos_token_ids),
        "kv_groups": [dataclasses.asdict(group) for group in facts.kv_groups],
        "num_blocks": list(facts.num_blocks),
        "block_root": facts.block_root.hex(),
        "device": facts.device,
        "dtype": facts.dtype,
        "operations": facts.operations,
    }


def facts_from(record: Mapping[str, Any]) -> ModelFacts:
    """The facts that a record describes."""
    return ModelFacts(
        max_model_len=record["max_model_len"],
        vocab_size=record["vocab_size"],
        eos_token_ids=tuple(record["eos_token_ids"]),
        kv_groups=tuple(KVGroupSpec(**{**group, "layers": tuple(group["layers"])}) for group in record["kv_groups"]),
        num_blocks=tuple(record["num_blocks"]),
        block_root=bytes.fromhex(record["block_root"]),
        device=record["device"],
        dtype=record["dtype"],
        operations=record["operations"],
    )


def _changed(value: Any) -> Record:
    """The fields of a dataclass that have no default, or another value."""
    found = {field.name: (getattr(value, field.name), field) for field in fields(value)}
    return {
        name: list(content) if isinstance(content, tuple) else content
        for name, (content, field) in found.items()
        if content != field.default
    }
