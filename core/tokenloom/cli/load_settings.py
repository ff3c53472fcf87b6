"""Keys that say what a simulated engine has to serve, and the requests that they stand for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tokenloom.errors import ConfigError
from tokenloom.settings_base import Settings, UserPath
from tokenloom.simulation.load_generation import LoadShape, generate_load
from tokenloom.simulation.measurements import SloTargets
from tokenloom.simulation.request_mix import RequestMix, mix_requests
from tokenloom.simulation.timed_request import MOST_TOKENS, TimedRequest, mean_rate, scale_arrivals
from tokenloom.simulation.trace_files import read_requests

__all__ = [
    "GENERATED",
    "LoadSettings",
    "NumRequests",
    "check_needed",
    "check_span",
    "read_load",
    "read_loads",
    "targets_of",
]

GENERATED = "generated"
NumRequests = Annotated[int, Field(ge=1, le=10_000_000)]
"""How many requests; all of them are made before the first one runs."""
_MOST_SPAN_S = 1e9
"""Up to here a clock in double precision tells microseconds apart; behind it, steps would begin to take no time."""
_LOAD_KEYS = {field.name for field in fields(LoadShape)}
_MIX_KEYS = {field.name for field in fields(RequestMix)}
_NEEDED = {"tenant_skew": "num_tenants", "relaxed_factor": "relaxed_share", "num_prefixes": "shared_prefix_tokens"}
"""Key -> the key without which it has no effect."""


class LoadSettings(Settings):
    """Base of the settings of commands that replay a workload."""

    workload: UserPath = Field(description="Azure .csv, Mooncake .jsonl, bench .json, or the word 'generated'.")
    rate: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Requests per second on average; stretches a trace's arrivals. null: as they are."
    )
    limit: NumRequests | None = Field(
        default=None, description="Only the first so many requests; how many to generate (1000 by default)."
    )
    ttft_slo_s: Annotated[float, Field(gt=0)] = Field(default=2.0, description="Target: time to first token, seconds.")
    tpot_slo_s: Annotated[float, Field(gt=0)] = Field(
        default=0.1, description="Target: time per output token, seconds."
    )
    workload_seed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Seed of all that is drawn: generated load, tenants, arrivals in a trace's buckets."
    )
    num_tenants: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=1, description="Tenants, drawn for each request, trace or generated; 1 leaves requests nobody's."
    )
    tenant_skew: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="The k-th tenant sends in proportion to 1 / k^tenant_skew; 0 makes all alike."
    )
    num_priorities: Annotated[int, Field(ge=1)] = Field(
        default=1, description="Priorities 0, 1, ..., drawn for each request; 0 is the most urgent."
    )
    relaxed_share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="Share of requests whose two targets are relaxed_factor times as long."
    )
    relaxed_factor: Annotated[float, Field(ge=1)] = Field(
        default=10.0, description="How many times as long the targets of those requests are."
    )
    burstiness: Annotated[float, Field(ge=1e-6)] = Field(
        default=1.0, description="Generated load: 1 is a Poisson process, less is burstier (gamma distribution)."
    )
    prompt_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = Field(
        default=512, description="Generated load: mean prompt length, a shared prefix not counted."
    )
    output_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = Field(
        default=128, description="Generated load: mean output length."
    )
    length_spread: Annotated[float, Field(ge=0, le=100)] = Field(
        default=0.0, description="Generated load: coefficient of variation of both lengths; 0 makes all alike."
    )
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=MOST_TOKENS)] = Field(
        default=0, description="Generated load: tokens that requests of one prefix begin with."
    )
    num_prefixes: Annotated[int, Field(ge=1)] = Field(default=1, description="Generated load: different prefixes.")

    @property
    def workload_file(self) -> str | None:
        """The file that is read; None where the load is generated."""
        return None if self.workload == GENERATED else self.workload


def read_loads(all_settings: Sequence[LoadSettings], num_generated: int) -> list[list[TimedRequest]]:
    """The requests of each point of a sweep, equal loads read once. Refuses what would be ignored in any of them."""
    known: dict[str, list[TimedRequest]] = {}
    loads: list[list[TimedRequest]] = []
    for settings in all_settings:
        _check_load(settings)
        key = settings.model_dump_json(include=set(LoadSettings.model_fields))
        if key not in known:
            known[key] = read_load(settings, num_generated)
        loads.append(known[key])
    return loads


def read_load(settings: LoadSettings, num_generated: int) -> list[TimedRequest]:
    """The requests, in order of arrival; `num_generated` of them where `limit` does not say how many to generate."""
    mix = RequestMix(**settings.model_dump(include=_MIX_KEYS))
    return mix_requests(_arrivals(settings, num_generated), mix, settings.workload_seed)


def check_needed(settings: LoadSettings) -> None:
    """Raises ConfigError for a key that has no effect without another one that is left at its default."""
    for key, other in _NEEDED.items():
        if _is_changed(settings, key) and not _is_changed(settings, other):
            raise ConfigError(
                f"{key}={getattr(settings, key)} has no effect with {other}={getattr(settings, other)}; set {other}, "
                f"or leave {key} out"
            )


def check_span(settings: LoadSettings, num_requests: int, span_s: float) -> None:
    """Raises ConfigError where requests arrive over a time that no clock resolves."""
    if not span_s <= _MOST_SPAN_S:
        what = f"workload={settings.workload}" if settings.rate is None else f"rate={settings.rate:g}"
        raise ConfigError(
            f"{what}: {num_requests} requests would arrive over {span_s:.3g} s, allowed are {_MOST_SPAN_S:g} s; give a "
            "higher rate, or fewer requests (limit=)"
        )


def targets_of(settings: LoadSettings) -> SloTargets:
    """What goodput is measured against."""
    return SloTargets(settings.ttft_slo_s, settings.tpot_slo_s)


def _check_load(settings: LoadSettings) -> None:
    """Refuses keys that this load would ignore."""
    own = settings.model_fields_set & (_LOAD_KEYS - {"rate"})
    if own and settings.workload != GENERATED:
        raise ConfigError(f"{', '.join(sorted(own))}: only of workload={GENERATED}; {settings.workload} is a file")
    check_needed(settings)
    if _is_changed(settings, "burstiness") and settings.rate is None:
        raise ConfigError(
            f"burstiness={settings.burstiness:g} has no effect without a rate, for all requests arrive at once; give "
            "rate=, or leave it out"
        )
    if _is_changed(settings, "workload_seed") and not _is_drawn(settings):
        raise ConfigError(
            f"workload_seed={settings.workload_seed}: nothing of this load is drawn at random; leave it out, or let "
            "rate, length_spread, num_prefixes, num_tenants, num_priorities or relaxed_share vary something"
        )


def _is_changed(settings: LoadSettings, key: str) -> bool:
    return bool(getattr(settings, key) != type(settings).model_fields[key].default)


def _is_drawn(settings: LoadSettings) -> bool:
    """Whether the seed changes anything."""
    if settings.num_tenants > 1 or settings.num_priorities > 1 or 0.0 < settings.relaxed_share < 1.0:
        return True
    if settings.workload != GENERATED:
        # Of the traces, only Mooncake's have buckets to spread arrivals in.
        return settings.workload.endswith(".jsonl")
    return settings.rate is not None or settings.length_spread > 0.0 or settings.num_prefixes > 1


def _arrivals(settings: LoadSettings, num_generated: int) -> list[TimedRequest]:
    if settings.workload == GENERATED:
        num_requests = settings.limit or num_generated
        check_span(settings, num_requests, num_requests / (settings.rate or math.inf))
        shape = LoadShape(**settings.model_dump(include=_LOAD_KEYS))
        requests = generate_load(shape, num_requests, settings.workload_seed)
    else:
        requests = read_requests(Path(settings.workload), limit=settings.limit, seed=settings.workload_seed)
    if settings.rate is not None:
        if mean_rate(requests) is None:
            raise ConfigError(_why_no_rate(settings, len(requests)))
        if settings.workload != GENERATED:
            requests = scale_arrivals(requests, settings.rate)
    check_span(settings, len(requests), requests[-1].arrival_s)
    return requests


def _why_no_rate(settings: LoadSettings, num_requests: int) -> str:
    rate = f"rate={settings.rate:g} has no effect on workload={settings.workload}"
    if num_requests == 1:
        return f"{rate}, which has a single request here; leave rate out, or raise limit"
    return (
        f"{rate}, whose {num_requests} requests arrive all at once: there is no time between them to stretch; leave "
        "rate out, or use workload=generated or a trace with arrivals (.csv, .jsonl)"
    )
