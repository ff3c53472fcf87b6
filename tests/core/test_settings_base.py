"""Every Config, the core's settings and commands' keys: no number may be infinite or NaN, and `~` of a path is home."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter

import tokenloom.cli
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import KINDS, REQUEST_KINDS, SUB_KINDS
from tokenloom.plugins import default_registry
from tokenloom.settings_base import Settings
from tokenloom.settings_validation import alternatives, validated


def all_settings() -> list[type[Settings]]:
    """Of every plugin that is registered, and what the commands and all that they use declare."""
    registry = default_registry()
    for kind in (*KINDS, *SUB_KINDS, *REQUEST_KINDS):
        for name in registry.names(kind):
            registry.load_config_class(kind, name)
    for module in pkgutil.iter_modules(tokenloom.cli.__path__):
        importlib.import_module(f"tokenloom.cli.{module.name}")
    return sorted(set(descendants(Settings)), key=lambda model: (model.__module__, model.__qualname__))


def descendants(model: type[Settings]) -> Iterator[type[Settings]]:
    for child in model.__subclasses__():
        if child.__module__.startswith("tokenloom"):
            yield child
            yield from descendants(child)


def values_with(annotation: Any, wanted: float | str, kinds: tuple[type, ...] = (float,)) -> Iterator[Any]:
    """Values of a type that hold what is wanted, one for each place of one of the kinds."""
    for part in alternatives(annotation):
        inner = [arg for arg in typing.get_args(part) if arg is not Ellipsis]
        if part in kinds:
            yield wanted
        elif typing.get_origin(part) in (tuple, list):
            yield from ([value] for value in values_with(inner[0], wanted, kinds))
        elif typing.get_origin(part) is not None and len(inner) == 2:
            key = 1 if inner[0] is int else "key"
            yield from ({key: value} for value in values_with(inner[1], wanted, kinds))


CASES = [
    (model, name, value)
    for model in all_settings()
    for name, info in model.model_fields.items()
    for number in (math.inf, -math.inf, math.nan)
    for value in values_with(info.annotation, number)
]


def case_id(part: object) -> str:
    return f"{part.__module__}.{part.__qualname__}" if isinstance(part, type) else str(part)


@pytest.mark.parametrize(("model", "name", "value"), CASES, ids=case_id)
def test_number_that_is_not_finite_is_refused_by_its_name(model: type[Settings], name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"\b{name}[\w.]*: must be a finite number, got (-?inf|nan)"):
        validated(model, {name: value}, "here")


def test_the_walk_meets_plugins_core_and_commands() -> None:
    met = {f"{model.__name__}.{name}" for model, name, _ in CASES}
    expected = {
        "DeadlineConfig.max_wait_s",
        "PriorityConfig.ageing_s",
        "FairShareConfig.weights",
        "LfuConfig.half_life_s",
    }
    assert expected | {"ServerSettings.drain_timeout_s", "LoadTestSettings.ttft_slo_s"} <= met, sorted(met)


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_number_that_is_not_finite_is_refused_in_a_config(value: str) -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.ageing_s=.*: must be a finite number; write null for none"):
        compose_config(["scheduler=priority", f"scheduler.ageing_s={value}"])


@pytest.mark.parametrize("name", ["sjf", "deadline", "prefix_affinity"])
def test_a_bound_on_waiting_can_be_switched_off(name: str) -> None:
    choice = compose_config([f"scheduler={name}", "scheduler.max_wait_s=null"]).engine.scheduler
    assert choice.config.model_dump()["max_wait_s"] is None


NO_PATHS = {
    "BenchCompareSettings": {"a", "a_api_key", "a_model", "b", "b_api_key", "b_model"},
    "BenchServeSettings": {"api_key", "base_url", "model"},
    "CalibrateSettings": {"label"},
    "DevicePreset": {"name", "quant", "source"},
    "DraftModelConfig": {"quant", "revision"},
    "EvalSettings": {"choice_delimiter"},
    "ExperimentSettings": {"figures", "sweep"},
    "HeadConfig": {"quant"},
    "LoadTestSettings": {"extra_body"},
    "ModelSettings": {"revision"},
    "QuantConfig": {"skip"},
    "QuantizeSettings": {"skip"},
    "SamplingSettings": {"bad_words", "stop"},
    "ServerSettings": {
        "cors_origins",
        "fallback_scheduler",
        "host",
        "otel_endpoint",
        "reasoning_parser",
        "served_model_names",
        "tool_parser",
    },
}
"""Settings that are text, or hold it, and name no file or folder; a new one gets its word here, or is a `UserPath`."""


def own_texts() -> Iterator[tuple[type[Settings], str, Any]]:
    """Settings that hold text, in the class that declares them, each with a value that begins with ~."""
    for model in all_settings():
        for name in inspect.get_annotations(model).keys() & model.model_fields.keys():
            for value in values_with(model.model_fields[name].annotation, "~/x", (str, Path)):
                yield model, name, value


def with_tilde() -> dict[str, set[str]]:
    """Settings, by class, that leave ~ as it is."""
    kept: dict[str, set[str]] = {}
    for model, name, value in own_texts():
        info = model.model_fields[name]
        found = TypeAdapter[Any](Annotated[info.annotation, *info.metadata, name]).validate_python(value)
        if "~" in str(found):
            kept.setdefault(model.__name__, set()).add(name)
    return kept


def test_every_path_begins_at_home_where_it_begins_with_a_tilde() -> None:
    assert with_tilde() == NO_PATHS
    met = {f"{model.__name__}.{name}" for model, name, _ in own_texts()}
    assert {"ModelSettings.source", "TraceSettings.file", "EvalSettings.text", "NativeCpuConfig.kv_scales"} <= met
