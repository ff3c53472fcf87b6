"""All reasons against a combination are found before anything is loaded, each with what to try."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from tokenloom.capability_check import capability_check, missing_imports
from tokenloom.engine_config import DebugSettings, EngineConfig, EngineSettings, ModelSettings
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.interfaces.contract import KINDS, Capabilities, PluginChoice, PluginConfig, PluginInfo
from tokenloom.interfaces.executor import ModelTraits
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.plugins import Registry, hookimpl

FACTS = ModelTraits(head_dim=64, has_window=False, has_soft_cap=False, device="cpu", dtype="float32")
ABLE = Capabilities(
    flags=frozenset({"sliding_window", "soft_cap", "sinks", "deterministic", "async_launch", "tree_mask", "swap"})
)


class PlainConfig(PluginConfig):
    part: PluginChoice | None = None

    def build(self, context: Any) -> Any:
        raise NotImplementedError


class PlainCacheConfig(CacheConfig):
    def build(self, context: Any) -> Any:
        raise NotImplementedError


class PlainSchedulerConfig(SchedulerConfig):
    part: PluginChoice | None = None

    def build(self, context: Any) -> Any:
        raise NotImplementedError


def registry_of(plugins: Mapping[str, Capabilities]) -> Registry:
    """A registry of plugins given as {"kind=name": capabilities}, plus an able one called "fine" per kind."""
    given = dict(plugins) | {
        f"{kind}=fine": ABLE for kind in KINDS if kind not in {p.partition("=")[0] for p in plugins}
    }
    module = ModuleType("made_up")

    @hookimpl
    def tokenloom_plugins() -> list[PluginInfo]:
        return [
            PluginInfo(*label.split("="), config="m:C", contract=(1, 0), summary="", capabilities=can)
            for label, can in given.items()
        ]

    module.__dict__["tokenloom_plugins"] = tokenloom_plugins
    return Registry.from_modules([module])


def config_of(registry: Registry, **settings: Any) -> EngineConfig:
    """The first plugin of each kind."""
    block_size = settings.pop("block_size", 16)
    part = settings.pop("part", None)
    preempt_mode = settings.pop("preempt_mode", "recompute")
    choices = {}
    for kind in KINDS:
        config: PluginConfig = PlainConfig(part=part)
        if kind == "cache":
            config = PlainCacheConfig(block_size=block_size)
        elif kind == "scheduler":
            config = PlainSchedulerConfig(part=part, preempt_mode=preempt_mode)
        choices[kind] = PluginChoice(kind, registry.plugins(kind)[0].info.name, config)
    return EngineConfig(model=ModelSettings(), engine=EngineSettings(**settings), debug=DebugSettings(), **choices)


def test_an_able_combination_has_no_reasons() -> None:
    registry = registry_of({})
    facts = ModelTraits(head_dim=80, has_window=True, has_soft_cap=True, device="cuda", dtype="bfloat16")
    config = config_of(registry, deterministic=True, pipeline_depth=2, preempt_mode="swap")
    assert capability_check(config, registry, traits=facts) == []


def test_swap_without_host_memory_is_refused() -> None:
    registry = registry_of({})
    config = config_of(registry, preempt_mode="swap")
    cache = PluginChoice("cache", config.cache.name, PlainCacheConfig(host_memory_bytes=0))
    (reason,) = capability_check(config.model_copy(update={"cache": cache}), registry, traits=FACTS)
    assert reason.startswith("scheduler.preempt_mode=swap needs memory on the host, but cache.host_memory_bytes is 0")


CASES: list[tuple[str, Capabilities, ModelTraits, dict[str, Any], str]] = [
    (
        "executor=x",
        Capabilities(),
        FACTS,
        {"preempt_mode": "cheaper"},
        "executor=x lacks the ability swap, but scheduler.preempt_mode=cheaper; try executor=able",
    ),
    (
        "attention=x",
        Capabilities(head_dims=(64, 128)),
        replace(FACTS, head_dim=80),
        {},
        "attention=x needs head_dim in (64, 128), got 80; try attention=able",
    ),
    (
        "quant=x",
        Capabilities(devices=("cuda",)),
        FACTS,
        {},
        "quant=x needs device in (cuda), got cpu; try quant=able",
    ),
    (
        "attention=x",
        Capabilities(dtypes=("bfloat16", "float16")),
        FACTS,
        {},
        "attention=x needs dtype in (bfloat16, float16), got float32; try attention=able",
    ),
    (
        "attention=x",
        Capabilities(),
        replace(FACTS, has_window=True),
        {},
        "attention=x lacks the ability sliding_window, but this model has sliding-window layers; try attention=able",
    ),
    (
        "attention=x",
        Capabilities(),
        replace(FACTS, has_soft_cap=True),
        {},
        "attention=x lacks the ability soft_cap, but this model caps its attention scores; try attention=able",
    ),
    (
        "attention=x",
        Capabilities(),
        replace(FACTS, has_sinks=True),
        {},
        "attention=x lacks the ability sinks, but this model has attention sinks; try attention=able",
    ),
    (
        "attention=x",
        Capabilities(block_size_multiple=16),
        FACTS,
        {"block_size": 24},
        "attention=x needs cache.block_size to be a multiple of 16, got 24; try attention=able",
    ),
    (
        "executor=x",
        Capabilities(),
        FACTS,
        {"pipeline_depth": 2},
        "executor=x lacks the ability async_launch, but engine.pipeline_depth=2; try executor=able",
    ),
    (
        "quant=x",
        Capabilities(),
        replace(FACTS, dtype="bfloat16"),
        {"deterministic": True},
        "quant=x lacks the ability deterministic, but engine.deterministic=true in bfloat16 on cpu (float32 needs no "
        "flag); try quant=able",
    ),
    (
        "attention=x",
        Capabilities(flags=frozenset({"deterministic@cpu"})),
        replace(FACTS, dtype="bfloat16", device="cuda"),
        {"deterministic": True},
        "attention=x lacks the ability deterministic, but engine.deterministic=true in bfloat16 on cuda (float32 needs "
        "no flag); try attention=able",
    ),
    (
        "spec_decode=x",
        Capabilities(requires=("no_module_of_this_name",)),
        FACTS,
        {},
        "spec_decode=x needs no_module_of_this_name, which is not installed; try spec_decode=able",
    ),
]


def test_a_flag_of_one_device_is_enough_there() -> None:
    only_there = Capabilities(flags=frozenset({"deterministic@cpu", "sliding_window@cpu"}))
    registry = registry_of({"attention=x": only_there})
    facts = replace(FACTS, dtype="bfloat16", has_window=True)
    assert capability_check(config_of(registry, deterministic=True), registry, traits=facts) == []


@pytest.mark.parametrize(("label", "can", "facts", "settings", "reason"), CASES)
def test_each_reason_names_plugin_demand_and_remedy(
    label: str, can: Capabilities, facts: ModelTraits, settings: dict[str, Any], reason: str
) -> None:
    kind = label.partition("=")[0]
    registry = registry_of({label: can, f"{kind}=able": ABLE})
    assert capability_check(config_of(registry, **settings), registry, traits=facts) == [reason]


@pytest.mark.parametrize(("label", "can", "facts", "settings", "reason"), CASES)
def test_without_an_alternative_the_reason_says_so(
    label: str, can: Capabilities, facts: ModelTraits, settings: dict[str, Any], reason: str
) -> None:
    registry = registry_of({label: can})
    (found,) = capability_check(config_of(registry, **settings), registry, traits=facts)
    assert found == f"{reason.partition('; try')[0]}; no installed {label.partition('=')[0]} plugin can"


def test_all_reasons_of_all_plugins_are_collected() -> None:
    registry = registry_of(
        {
            "attention=x": Capabilities(
                devices=("cuda",), dtypes=("float16",), head_dims=(32,), block_size_multiple=256
            ),
            "quant=x": Capabilities(dtypes=("float16",)),
            "executor=x": Capabilities(),
        }
    )
    facts = replace(FACTS, has_window=True, has_soft_cap=True)
    reasons = capability_check(config_of(registry, pipeline_depth=2), registry, traits=facts)
    assert len(reasons) == 8
    assert len(set(reasons)) == 8


def test_needs_across_plugins_are_checked() -> None:
    drafter = Capabilities(needs={"attention": ("tree_mask",)})
    registry = registry_of({"spec_decode=eagle": drafter, "attention=x": Capabilities(), "attention=able": ABLE})
    reasons = capability_check(config_of(registry), registry, traits=FACTS)
    assert reasons == [
        "spec_decode=eagle needs the ability tree_mask of attention, which attention=x lacks; try attention=able"
    ]


def test_needs_of_a_kind_that_is_not_chosen_are_reported() -> None:
    registry = registry_of({"cache=tiered": Capabilities(needs={"cache.eviction": ("tiers",)})})
    (reason,) = capability_check(config_of(registry), registry, traits=FACTS)
    assert reason == "cache=tiered needs a cache.eviction plugin with the ability tiers, but none is chosen"


def test_nested_plugins_are_checked_too() -> None:
    registry = registry_of({"scheduler.victim=x": Capabilities(devices=("cuda",))})
    part = PluginChoice("scheduler.victim", "x", PlainConfig())
    (reason,) = capability_check(config_of(registry, part=part), registry, traits=FACTS)
    assert reason.startswith("scheduler.victim=x needs device in (cuda), got cpu")


def test_deterministic_in_float32_needs_no_flag() -> None:
    registry = registry_of({"quant=x": Capabilities(), "attention=x": Capabilities()})
    assert capability_check(config_of(registry, deterministic=True), registry, traits=FACTS) == []


def test_refused_plugins_are_no_alternatives() -> None:
    module = ModuleType("made_up")

    @hookimpl
    def tokenloom_plugins() -> list[PluginInfo]:
        rest = [PluginInfo(kind, "fine", "m:C", (1, 0), "", ABLE) for kind in KINDS if kind != "quant"]
        slow = PluginInfo("quant", "slow", "m:C", (1, 0), "", Capabilities(devices=("cuda",)))
        return [*rest, slow, PluginInfo("quant", "old", "m:C", (0, 1), "")]

    module.__dict__["tokenloom_plugins"] = tokenloom_plugins
    registry = Registry.from_modules([module])
    (reason,) = capability_check(config_of(registry), registry, traits=FACTS)
    assert reason.endswith("no installed quant plugin can")


@pytest.mark.parametrize(("is_there", "missing"), [(lambda name: True, []), (lambda name: name == "a", ["b"])])
def test_missing_imports_asks_for_each_required_module(is_there: Callable[[str], bool], missing: list[str]) -> None:
    assert missing_imports(Capabilities(requires=("a", "b")), is_there) == missing
