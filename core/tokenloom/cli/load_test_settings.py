"""Keys of commands that put load on a server, and the load that they stand for."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tokenloom.cli.load_settings import GENERATED, LoadSettings, NumRequests, check_needed, check_span, targets_of
from tokenloom.errors import ConfigError
from tokenloom.load_generator.endpoint import Api, Endpoint, parse_base_url, parse_extra_body
from tokenloom.load_generator.measure import LoadTest
from tokenloom.load_generator.prompt_files import read_planned_requests
from tokenloom.load_generator.prompts import PromptForm, read_tokenizer
from tokenloom.load_generator.traffic import Traffic, TrafficKind
from tokenloom.load_generator.workloads import FileWorkload, GeneratedWorkload, PlannedRequest, Workload
from tokenloom.settings_base import UserPath
from tokenloom.simulation.load_generation import LoadShape
from tokenloom.simulation.request_mix import RequestMix

__all__ = ["LoadTestSettings", "endpoint_of", "load_test_of", "wanted_form"]

_LEAST_GENERATED = 100
_PER_SLOT = 4
_SLACK = 10.0
"""Standard deviations by which more requests are generated than are due within duration_s."""
_DEFAULT_CONCURRENCY = 8
_SHAPE_KEYS = {field.name for field in fields(LoadShape)}
_ONLY_GENERATED = _SHAPE_KEYS - {"rate", "burstiness", "output_tokens"}
_ENVIRONMENT = "env:"

PositiveFloat = Annotated[float, Field(gt=0)]


class LoadTestSettings(LoadSettings):
    """Base of the settings of `tokenloom bench serve` and `tokenloom bench compare`."""

    workload: UserPath = Field(
        default=GENERATED,
        description="The word 'generated', Azure .csv, Mooncake .jsonl, bench .json, or prompts: .txt lines, .jsonl.",
    )
    limit: NumRequests | None = Field(
        default=None,
        description="Only the first so many requests; how many to generate (100, or 4 times the concurrency).",
    )
    endpoint: Api = Field(default="completions", description="Route: /completions or /chat/completions.")
    traffic: Literal["auto", TrafficKind] = Field(
        default="auto",
        description="closed (concurrency at a time), poisson, gamma (rate), trace (a file's arrivals) or all at once.",
    )
    concurrency: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Requests at a time of traffic=closed; null: 8."
    )
    duration_s: PositiveFloat | None = Field(
        default=None, description="Send nothing later than this; generated load then does not end before."
    )
    warmup_s: Annotated[float, Field(ge=0)] = Field(default=0.0, description="Seconds at the start that do not count.")
    cut_off: bool | None = Field(
        default=None, description="End the measured window when the load begins to fall; null: yes, unless traffic=all."
    )
    extra_body: str | None = Field(
        default=None, description="""JSON object of further fields of each request, e.g. '{"ignore_eos": true}'."""
    )
    timeout_s: PositiveFloat = Field(default=600.0, description="Most seconds that a request may take.")
    prompt_form: Literal["auto", PromptForm] = Field(
        default="auto", description="How prompts are sent; auto tries token ids, which a chat does not take."
    )
    # With few ids, prompts that are to share nothing would begin alike.
    vocab_size: Annotated[int, Field(ge=32)] = Field(default=32000, description="Random token ids are drawn below it.")
    tokenizer: UserPath | None = Field(
        default=None, description="tokenizer.json (or its folder) that makes text of token ids; null: plain words."
    )
    output: UserPath | None = Field(
        default=None, description="File for the result as JSON, with every request's times."
    )
    plot: UserPath | None = Field(default=None, description="File for a plot (.png, .svg or .pdf); needs matplotlib.")


def load_test_of(settings: LoadTestSettings) -> LoadTest:
    """The load that settings stand for. Raises ConfigError for a file that cannot be read, and for contradictions."""
    planned = _planned(settings)
    kind = _traffic_kind(settings, planned)
    _check(settings, kind)
    concurrency = (settings.concurrency or _DEFAULT_CONCURRENCY) if kind == "closed" else None
    workload = _workload(settings, kind, planned, concurrency)
    _check_span(settings, kind, planned, workload.num_requests or 0)
    if kind == "closed" and settings.cut_off is not False and concurrency is not None:
        _check_fills(workload, concurrency)
    return LoadTest(
        workload=workload,
        traffic=Traffic(kind, concurrency, settings.duration_s),
        warmup_s=settings.warmup_s,
        is_cut_off=kind != "all" if settings.cut_off is None else settings.cut_off,
        targets=targets_of(settings),
        vocab_size=settings.vocab_size,
        decoder=None if settings.tokenizer is None else read_tokenizer(Path(settings.tokenizer)),
    )


def endpoint_of(
    settings: LoadTestSettings, key: str, base_url: str, model: str | None, api_key: str | None
) -> Endpoint:
    """Where requests go; `key` names the setting of the URL in messages."""
    return Endpoint(
        base_url=parse_base_url(base_url, key),
        api=settings.endpoint,
        model=model or "",
        api_key=_secret(api_key),
        extra_body=parse_extra_body(settings.extra_body),
        timeout_s=settings.timeout_s,
    )


def wanted_form(settings: LoadTestSettings) -> PromptForm | None:
    """How prompts are to be sent; None to find out."""
    if settings.prompt_form == "token_ids" and settings.endpoint == "chat":
        raise ConfigError("prompt_form=token_ids: a chat takes only text; use endpoint=completions")
    return None if settings.prompt_form == "auto" else settings.prompt_form


def _secret(text: str | None) -> str | None:
    """`env:NAME` keeps a key out of the list of processes and of the shell's history."""
    if text is None or not text.startswith(_ENVIRONMENT):
        return text
    name = text.removeprefix(_ENVIRONMENT)
    if name not in os.environ:
        raise ConfigError(f"api_key={text}: there is no environment variable {name}")
    return os.environ[name]


def _planned(settings: LoadTestSettings) -> Sequence[PlannedRequest]:
    """Requests of a file; none for generated ones."""
    if settings.workload == GENERATED:
        return ()
    if own := _ONLY_GENERATED & settings.model_fields_set:
        raise ConfigError(f"{', '.join(sorted(own))}: only of workload={GENERATED}; {settings.workload} is a file")
    planned = read_planned_requests(
        Path(settings.workload),
        limit=settings.limit,
        seed=settings.workload_seed,
        output_tokens=settings.output_tokens,
    )
    if "output_tokens" in settings.model_fields_set and all(request.text is None for request in planned):
        raise ConfigError(f"output_tokens: {settings.workload} tells the lengths itself; drop one of them")
    return planned


def _traffic_kind(settings: LoadTestSettings, planned: Sequence[PlannedRequest]) -> TrafficKind:
    has_arrivals = any(request.timed.arrival_s for request in planned)
    if settings.traffic == "trace" and not has_arrivals:
        raise ConfigError(f"traffic=trace: workload={settings.workload} has no arrivals; use poisson, closed or all")
    if settings.traffic != "auto":
        return settings.traffic
    if has_arrivals and settings.concurrency is None:
        return "trace"
    if settings.rate is not None:
        return "gamma" if "burstiness" in settings.model_fields_set else "poisson"
    return "closed"


def _check(settings: LoadTestSettings, kind: TrafficKind) -> None:
    """Refuses what would be ignored."""
    given = settings.model_fields_set
    only = {
        "rate": ("poisson", "gamma", "trace"),
        "burstiness": ("gamma",),
        "concurrency": ("closed",),
        "duration_s": ("closed", "poisson", "gamma", "trace"),
        "warmup_s": ("closed", "poisson", "gamma", "trace"),
    }
    for key, kinds in only.items():
        if key in given and getattr(settings, key) is not None and kind not in kinds:
            raise ConfigError(f"{key} has no meaning with traffic={kind}, only with {' or '.join(kinds)}")
    if kind in ("poisson", "gamma") and settings.rate is None:
        raise ConfigError(f"traffic={kind} needs a rate, e.g. rate=4 requests per second")
    if kind == "all" and settings.cut_off:
        raise ConfigError("cut_off=true: with traffic=all the load falls from the start; drop it")
    if {"num_tenants", "tenant_skew"} & given:
        raise ConfigError("num_tenants, tenant_skew: a server's tenants are API keys; run one load for each api_key")
    check_needed(settings)


def _check_fills(workload: Workload, concurrency: int) -> None:
    count = workload.num_requests
    if count is not None and count <= concurrency:
        raise ConfigError(
            f"concurrency={concurrency}, but there {'is' if count == 1 else 'are'} only {count} "
            f"request{'' if count == 1 else 's'}: none follows another, so the load is "
            f"never steady; give more (limit=), or use traffic=all, or cut_off=false"
        )


def _check_span(
    settings: LoadTestSettings, kind: TrafficKind, planned: Sequence[PlannedRequest], num_requests: int
) -> None:
    if settings.rate is not None:
        check_span(settings, num_requests, num_requests / settings.rate)
    elif kind == "trace":
        check_span(settings, num_requests, planned[-1].timed.arrival_s)


def _workload(
    settings: LoadTestSettings, kind: TrafficKind, planned: Sequence[PlannedRequest], concurrency: int | None
) -> Workload:
    mix = RequestMix(
        num_priorities=settings.num_priorities,
        relaxed_share=settings.relaxed_share,
        relaxed_factor=settings.relaxed_factor,
    )
    is_drawn = kind in ("poisson", "gamma")
    if settings.workload != GENERATED:
        rate = settings.rate if is_drawn or kind == "trace" else None
        return FileWorkload(planned, mix, rate, settings.burstiness if is_drawn else None)
    shape = LoadShape(**{**settings.model_dump(include=_SHAPE_KEYS), "rate": settings.rate if is_drawn else None})
    return GeneratedWorkload(shape, mix, _num_generated(settings, concurrency))


def _num_generated(settings: LoadTestSettings, concurrency: int | None) -> int | None:
    if settings.limit is not None:
        return settings.limit
    if settings.duration_s is None:
        return max(_LEAST_GENERATED, _PER_SLOT * (concurrency or 0))
    if settings.rate is None:
        return None
    expected = settings.rate * settings.duration_s
    return math.ceil(expected + _SLACK * math.sqrt(expected / settings.burstiness) + _LEAST_GENERATED)
