"""Whether a combination of plugins, model and machine can run, told before any weight is loaded.

Pure functions over declared capabilities: they collect every reason against a combination, each with what to try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from tokenloom.engine_config import EngineConfig
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.interfaces.contract import Capabilities, PluginChoice
from tokenloom.interfaces.executor import ModelTraits
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.plugins import RegisteredPlugin, Registry

__all__ = ["can_import", "capability_check", "missing_imports"]

_NUMERIC_KINDS = ("attention", "quant")
"""Kinds whose arithmetic decides the logits, and with them batch invariance."""

_MOST_SUGGESTIONS = 4
_OWN_FILES = "own_files"
"""The flag of plugins that only read files of their own format, and so stand in for others of their kind nowhere."""


def can_import(name: str) -> bool:
    """Whether a top-level module can be found; it is not imported."""
    return find_spec(name.partition(".")[0]) is not None


def missing_imports(capabilities: Capabilities, is_importable: Callable[[str], bool] = can_import) -> list[str]:
    """The modules of `requires` that are not installed."""
    return [name for name in capabilities.requires if not is_importable(name)]


def capability_check(
    config: EngineConfig,
    registry: Registry,
    *,
    traits: ModelTraits,
    is_importable: Callable[[str], bool] = can_import,
) -> list[str]:
    """Collects every reason why the combination cannot run; empty if it can.

    Args:
        config: the validated configuration.
        registry: where the chosen plugins' capabilities, and alternatives to them, are looked up.
        traits: what the model and the machine are.
        is_importable: whether a module is installed; replaced in tests.

    Returns:
        Reasons such as "attention=x needs head_dim in (64, 128), got 80; try attention=torch_sdpa".
    """
    chosen = {choice.kind: registry.get(choice.kind, choice.name) for choice in _all_choices(config)}
    reasons: list[str] = []
    for plugin in chosen.values():
        for rule in _rules(plugin, config, traits, is_importable):
            if not rule.accepts(plugin.info.capabilities):
                reasons.append(f"{plugin.label} {rule.complaint}{_alternatives(plugin, rule, registry)}")
        reasons += _unmet_needs(plugin, chosen, registry, traits.device)
    mode, cache = _preempt_mode(config), config.cache.config
    assert isinstance(cache, CacheConfig), f"cache={config.cache.name} has a Config of type {type(cache).__name__}"
    if mode != "recompute" and cache.host_memory_bytes == 0:
        reasons.append(
            f"scheduler.preempt_mode={mode} needs memory on the host, but cache.host_memory_bytes is 0; raise it, or "
            "choose scheduler.preempt_mode=recompute"
        )
    return reasons


@dataclass(frozen=True, slots=True)
class _Rule:
    """One demand on a plugin: a test of capabilities, and what to say of a plugin that fails it."""

    accepts: Callable[[Capabilities], bool]
    complaint: str


def _all_choices(config: EngineConfig) -> Iterator[PluginChoice]:
    for choice in config.choices():
        yield choice
        for _, value in choice.config:
            if isinstance(value, PluginChoice):
                yield value


def _rules(
    plugin: RegisteredPlugin, config: EngineConfig, facts: ModelTraits, is_importable: Callable[[str], bool]
) -> Iterator[_Rule]:
    can = plugin.info.capabilities
    yield _member_rule("device", facts.device, can.devices, lambda c: c.devices)
    yield _member_rule("dtype", facts.dtype, can.dtypes, lambda c: c.dtypes)
    missing = ", ".join(missing_imports(can, is_importable))
    yield _Rule(lambda c: not missing_imports(c, is_importable), f"needs {missing}, which is not installed")
    kind = plugin.info.kind
    if kind == "attention":
        yield from _attention_rules(can, config, facts)
    if kind == "executor" and config.engine.pipeline_depth > 1:
        yield _flag_rule("async_launch", f"engine.pipeline_depth={config.engine.pipeline_depth}", facts.device)
    if kind == "executor" and _preempt_mode(config) != "recompute":
        yield _flag_rule("swap", f"scheduler.preempt_mode={_preempt_mode(config)}", facts.device)
    if kind in _NUMERIC_KINDS and config.engine.deterministic and facts.dtype != "float32":
        why = f"engine.deterministic=true in {facts.dtype} on {facts.device} (float32 needs no flag)"
        yield _flag_rule("deterministic", why, facts.device)


def _preempt_mode(config: EngineConfig) -> str:
    settings = config.scheduler.config
    assert isinstance(settings, SchedulerConfig), f"scheduler={config.scheduler.name} has a {type(settings).__name__}"
    return settings.preempt_mode


def _attention_rules(can: Capabilities, config: EngineConfig, facts: ModelTraits) -> Iterator[_Rule]:
    yield _member_rule("head_dim", facts.head_dim, can.head_dims, lambda c: c.head_dims)
    if facts.has_window:
        yield _flag_rule("sliding_window", "this model has sliding-window layers", facts.device)
    if facts.has_soft_cap:
        yield _flag_rule("soft_cap", "this model caps its attention scores", facts.device)
    if facts.has_sinks:
        yield _flag_rule("sinks", "this model has attention sinks", facts.device)
    cache = config.cache.config
    assert isinstance(cache, CacheConfig), f"cache={config.cache.name} has a Config of type {type(cache).__name__}"
    size = cache.block_size
    yield _Rule(
        lambda c: size % c.block_size_multiple == 0,
        f"needs cache.block_size to be a multiple of {can.block_size_multiple}, got {size}",
    )


def _member_rule(
    word: str,
    value: object,
    allowed: Sequence[object] | None,
    read: Callable[[Capabilities], Sequence[object] | None],
) -> _Rule:
    def accepts(capabilities: Capabilities) -> bool:
        members = read(capabilities)
        return members is None or value in members

    listed = ", ".join(str(member) for member in allowed or ())
    return _Rule(accepts, f"needs {word} in ({listed}), got {value}")


def _flag_rule(flag: str, why: str, device: str) -> _Rule:
    return _Rule(lambda c: c.has_flag(flag, device), f"lacks the ability {flag}, but {why}")


def _alternatives(plugin: RegisteredPlugin, rule: _Rule, registry: Registry) -> str:
    kind = plugin.info.kind
    others = [other for other in registry.plugins(kind) if other.refusal is None and other is not plugin]
    if _OWN_FILES not in plugin.info.capabilities.flags:
        others = [other for other in others if _OWN_FILES not in other.info.capabilities.flags]
    fitting = [other.label for other in others if rule.accepts(other.info.capabilities)]
    if not fitting:
        return f"; no installed {kind} plugin can"
    return f"; try {' or '.join(sorted(fitting)[:_MOST_SUGGESTIONS])}"


def _unmet_needs(
    plugin: RegisteredPlugin, chosen: dict[str, RegisteredPlugin], registry: Registry, device: str
) -> Iterator[str]:
    """Abilities that this plugin asks of the others."""
    for kind, flags in plugin.info.capabilities.needs.items():
        other = chosen.get(kind)
        for flag in flags:
            if other is None:
                yield f"{plugin.label} needs a {kind} plugin with the ability {flag}, but none is chosen"
            elif not other.info.capabilities.has_flag(flag, device):
                rule = _flag_rule(flag, "", device)
                remedy = _alternatives(other, rule, registry)
                yield f"{plugin.label} needs the ability {flag} of {kind}, which {other.label} lacks{remedy}"
