"""Keys that say what a simulated engine has to serve, and the requests that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tokenloom.errors import ConfigError
from tokenloom.simulation.load_generation import LoadShape, generate_load
from tokenloom.simulation.measurements import SloTargets
from tokenloom.simulation.request_mix import RequestMix, mix_requests
from tokenloom.simulation.timed_request import TimedRequest, scale_arrivals
from tokenloom.simulation.trace_files import read_requests

__all__ = ["GENERATED", "LoadSettings", "check_load", "read_load", "targets_of"]

GENERATED = "generated"
_LOAD_KEYS = {field.name for field in fields(LoadShape)}
_MIX_KEYS = {field.name for field in fields(RequestMix)}


class LoadSettings(BaseModel):
    """Base of the settings of commands that replay a workload."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    workload: str = Field(description="Azure .csv, Mooncake .jsonl, bench .json, or the word 'generated'.")
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Requests per second on average; stretches a trace's arrivals. null: as they are."
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Only the first so many requests; how many to generate (1000 by default)."
    )
    ttft_slo_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=2.0, description="Target: time to first token, seconds."
    )
    tpot_slo_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=0.1, description="Target: time per output token, seconds."
    )
    workload_seed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Seed of all that is drawn: generated load, tenants, arrivals in a trace's buckets."
    )
    num_tenants: Annotated[int, Field(ge=1)] = Field(
        default=1, description="Tenants, drawn for each request, trace or generated; 1 leaves requests nobody's."
    )
    tenant_skew: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="The k-th tenant sends in proportion to 1 / k^tenant_skew; 0 makes all alike."
    )
    num_priorities: Annotated[int, Field(ge=1)] = Field(
        default=1, description="Priorities 0, 1, ..., drawn for each request; 0 is the most urgent."
    )
    relaxed_share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="Share of requests whose two targets are relaxed_factor times as long."
    )
    relaxed_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        default=10.0, description="How many times as long the targets of those requests are."
    )
    burstiness: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=1.0, description="Generated load: 1 is a Poisson process, less is burstier (gamma distribution)."
    )
    prompt_tokens: Annotated[int, Field(ge=1)] = Field(
        default=512, description="Generated load: mean prompt length, a shared prefix not counted."
    )
    output_tokens: Annotated[int, Field(ge=1)] = Field(default=128, description="Generated load: mean output length.")
    length_spread: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="Generated load: coefficient of variation of both lengths; 0 makes all alike."
    )
    shared_prefix_tokens: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Generated load: tokens that requests of one prefix begin with."
    )
    num_prefixes: Annotated[int, Field(ge=1)] = Field(default=1, description="Generated load: different prefixes.")


def check_load(settings: LoadSettings) -> None:
    """Raises ConfigError where keys of generated load stand beside a file, which would ignore them."""
    own = set(_own_load_keys(settings))
    if own and settings.workload != GENERATED:
        raise ConfigError(f"{', '.join(sorted(own))}: only of workload={GENERATED}; {settings.workload} is a file")


def read_load(settings: LoadSettings, num_generated: int) -> list[TimedRequest]:
    """The requests, in order of arrival; `num_generated` of them where `limit` does not say how many to generate."""
    mix = RequestMix(**settings.model_dump(include=_MIX_KEYS))
    return mix_requests(_arrivals(settings, num_generated), mix, settings.workload_seed)


def targets_of(settings: LoadSettings) -> SloTargets:
    """What goodput is measured against."""
    return SloTargets(settings.ttft_slo_s, settings.tpot_slo_s)


def _arrivals(settings: LoadSettings, num_generated: int) -> list[TimedRequest]:
    if settings.workload == GENERATED:
        shape = LoadShape(**settings.model_dump(include=_LOAD_KEYS))
        return generate_load(shape, settings.limit or num_generated, settings.workload_seed)
    requests = read_requests(Path(settings.workload), limit=settings.limit, seed=settings.workload_seed)
    return requests if settings.rate is None else scale_arrivals(requests, settings.rate)


def _own_load_keys(settings: LoadSettings) -> Iterator[str]:
    return (name for name in settings.model_fields_set if name in _LOAD_KEYS - {"rate"})
