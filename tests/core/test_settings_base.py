"""No setting may be infinite or NaN: every number of every Config, of the core's settings and of commands' keys."""

from __future__ import annotations

import importlib
import math
import pkgutil
import typing
from collections.abc import Iterator
from typing import Any

import pytest

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


def values_with(annotation: Any, number: float) -> Iterator[Any]:
    """Values of a type that hold a number, one for each place where it allows one."""
    for part in alternatives(annotation):
        inner = [arg for arg in typing.get_args(part) if arg is not Ellipsis]
        if part is float:
            yield number
        elif typing.get_origin(part) in (tuple, list):
            yield from ([value] for value in values_with(inner[0], number))
        elif typing.get_origin(part) is not None and len(inner) == 2:
            key = 1 if inner[0] is int else "key"
            yield from ({key: value} for value in values_with(inner[1], number))


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
