"""Validates composed values: plugin blocks by the Config of (kind, name), nested plugins first, then the engine.

Every fault is collected; a message names the key, its value, where the value came from, and what is allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast, final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tokenloom.compose.config_keys import describe_field, holds_secrets, near_keys, settings_models
from tokenloom.compose.field_fault import field_fault, none_as_text
from tokenloom.compose.overrides import value_word
from tokenloom.compose.secret_words import may_hold_secret
from tokenloom.engine_config import EngineConfig, ModelSettings
from tokenloom.errors import ConfigError, ContractVersionError, PluginError
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, KINDS, PluginChoice, PluginConfig
from tokenloom.plugins import Registry
from tokenloom.settings_validation import fault_text, lists_to_tuples, misreads_bool

if TYPE_CHECKING:
    # Pulls in torch, which composing a config does not need.
    from tokenloom.interfaces.executor import ExecutorConfig

__all__ = ["Validated", "validate"]

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Validated:
    """The outcome: the engine's config, and the command's own settings if it has a schema."""

    engine: EngineConfig
    extras: BaseModel | None


def validate(
    values: Mapping[str, Any], sources: Mapping[str, str], registry: Registry, command: type[BaseModel] | None
) -> Validated:
    """Turns plain composed values into validated settings.

    Args:
        values: nested plain data; the blocks of an EngineConfig plus the command's own keys at the top level.
        sources: origin of each leaf, by dotted key; used in messages.
        registry: where plugins are looked up.
        command: schema of the command's own keys; its blocks are validated like the engine's.

    Raises:
        ConfigError: any key or value is wrong; the message lists all of them.
        PluginError: a chosen plugin is not installed, or cannot be loaded.
        ContractVersionError: a chosen plugin was written for another contract.
    """
    command_fields = command.model_fields if command is not None else {}
    check = _Check(sources, registry, dict(values), (*EngineConfig.model_fields, "experiment", *command_fields))
    blocks = {name: check.model(name, model, values.get(name, {})) for name, model in settings_models().items()}
    choices = {kind: check.plugin(kind, values.get(kind)) for kind in KINDS}
    clash = sorted(set(command_fields) & set(EngineConfig.model_fields))
    assert not clash, f"the command's keys {clash} are keys of the engine"
    check.known |= set(check.top)
    extras = check.extras(command) if command is not None else None
    for key in values:
        if key not in EngineConfig.model_fields and key not in command_fields:
            check.unknown_top(key)
    check.finish()
    place = _place(choices["executor"], blocks["model"])
    meant = {kind: _meant(choice, place) for kind, choice in choices.items()}
    return Validated(engine=EngineConfig(**blocks, **meant), extras=extras)  # type: ignore[arg-type]


def _place(executor: PluginChoice | None, model: BaseModel | None) -> tuple[str, str]:
    """Device and dtype, as far as they are known before a model is opened."""
    assert executor is not None, "a config with faults was not refused"
    assert isinstance(model, ModelSettings), f"the block model holds {model!r}"
    return cast("ExecutorConfig", executor.config).place(model.device, model.dtype)


def _meant(choice: PluginChoice | None, place: tuple[str, str]) -> PluginChoice:
    """The plugin that is going to run, where an `auto` was chosen."""
    assert choice is not None, "a config with faults was not refused"
    return choice.config.stands_for(*place) or choice


@final
@dataclass(slots=True)
class _Check:
    """One validation under way: the faults so far, and the keys that are legal with the chosen plugins."""

    sources: Mapping[str, str]
    registry: Registry
    values: dict[str, Any]
    top: tuple[str, ...]
    faults: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    secret: set[str] = field(default_factory=set)

    def model(
        self, prefix: str, model: type[BaseModel], values: Any, failed_parts: Collection[str] = ()
    ) -> BaseModel | None:
        """Validates a block against a model and notes its faults; None if there are any."""
        self.known |= {_join(prefix, name) for name in model.model_fields}
        self.secret |= {
            _join(prefix, name) for name, info in model.model_fields.items() if holds_secrets(info.annotation)
        }
        if not isinstance(values, Mapping):
            self.faults.append((prefix, f"must be a block with the keys {', '.join(model.model_fields)}"))
            return None
        for name, info in model.model_fields.items():
            if isinstance(values.get(name), bool) and misreads_bool(info):
                self.faults.append((_join(prefix, name), f"must be {describe_field(name, info).type}"))
            key = _join(prefix, name)
            fault = none_as_text(info, values.get(name), is_keyword=self._is_keyword(key))
            if fault is not None:
                self.faults.append((key, fault))
        try:
            return model.model_validate(lists_to_tuples(model, values))
        except ValidationError as error:
            for details in error.errors(include_url=False):
                if not details["loc"] or details["loc"][0] not in failed_parts:
                    self._note(prefix, model, details)
            return None

    def extras(self, command: type[BaseModel]) -> BaseModel | None:
        """Validates the command's own keys, its blocks first."""
        own = {key: value for key, value in self.values.items() if key in command.model_fields}
        blocks = {name: self.model(name, block, own.get(name, {})) for name, block in settings_models(command).items()}
        return self.model("", command, {**own, **blocks}, [name for name, block in blocks.items() if block is None])

    def plugin(self, kind: str, block: Any) -> PluginChoice | None:
        """Validates the block of a chosen plugin, its nested plugins first."""
        name = block.get("name") if isinstance(block, Mapping) else None
        if not isinstance(name, str):
            self.faults.append((kind, f"must be a block whose 'name' is one of {', '.join(self.registry.names(kind))}"))
            return None
        info = self.registry.get(kind, name).info
        config_class = self.registry.load_config_class(kind, name)
        values = {key: value for key, value in block.items() if key != "name"}
        failed_parts: list[str] = []
        for sub_kind, default in info.sub_kinds.items():
            part = sub_kind.rpartition(".")[2]
            if part not in config_class.model_fields:
                raise PluginError(f"{kind}={name} declares the part {sub_kind}, but its Config has no field {part!r}")
            # A config file without a defaults list for the part takes the one that the plugin names.
            values[part] = self.plugin(sub_kind, values.get(part, {"name": default}))
            if values[part] is None:
                failed_parts.append(part)
        config = self.model(kind, config_class, values, failed_parts)
        return PluginChoice(kind, name, config) if isinstance(config, PluginConfig) else None

    def unknown_top(self, key: str) -> None:
        """Notes a top-level key that nobody knows."""
        foreign = self.registry.plugins(key)
        if foreign and key not in CONTRACT_VERSIONS:
            raise ContractVersionError(f"{foreign[0].label} (package {foreign[0].package}): {foreign[0].refusal}")
        for leaf in _leaves(key, self.values[key]):
            self.unknown.append((leaf, f"no such key; at the top stand {', '.join(self.top)}"))

    def finish(self) -> None:
        """Raises ConfigError if there were faults."""
        lines = [f"{self._shown(key)}: {text}" for key, text in self.faults]
        lines += [self._unknown_line(key, text) for key, text in self.unknown]
        if len(lines) == 1:
            raise ConfigError(lines[0])
        if lines:
            raise ConfigError("\n  - ".join([f"{len(lines)} settings are wrong:", *lines]))

    def _note(self, prefix: str, model: type[BaseModel], details: ErrorDetails) -> None:
        """Notes one pydantic error."""
        key = prefix
        for part in details["loc"]:
            # The tail of a location may name a union member, which is no key.
            if key == prefix or isinstance(self._value_at(key), Mapping):
                key = _join(key, str(part))
        if details["type"] == "extra_forbidden":
            name = self._value_at(f"{prefix}.name")
            owner = f"{prefix}={name}" if isinstance(name, str) else prefix or "this command"
            has = ", ".join(model.model_fields) or "no keys"
            self.unknown.extend(
                (leaf, f"{owner} has no such key, it has {has}") for leaf in _leaves(key, details["input"])
            )
        elif details["type"] == "missing":
            self.faults.append((key, "must be given, it has no default"))
        else:
            self.faults.append((key, self._fault_text(prefix, model, details, key)))

    def _fault_text(self, prefix: str, model: type[BaseModel], details: ErrorDetails, key: str) -> str:
        name = str(details["loc"][0]) if details["loc"] else ""
        info = model.model_fields.get(name)
        if info is None:  # a rule of the whole block
            return fault_text(details)
        return field_fault(_join(prefix, name), info, details, is_keyword=self._is_keyword(key))

    def _is_keyword(self, key: str) -> bool:
        return self.sources.get(key, "").startswith("keyword ")

    def _shown(self, key: str) -> str:
        """The key with its value and origin, e.g. "cache.block_size=0 (conf/cache/hash.yaml)"."""
        value = self._value_at(key)
        if key in self.secret or may_hold_secret(key):
            return key
        shown = key if value is _ABSENT or isinstance(value, Mapping) else f"{key}={value_word(value)}"
        origin = self.sources.get(key, "")
        return f"{shown} ({origin})" if origin not in ("", f"override {shown}") else shown

    def _unknown_line(self, key: str, text: str) -> str:
        line = f"{self._shown(key)}: {text}"
        near = near_keys(key, self.known)
        if near:
            line += f"; did you mean {' or '.join(near)}?"
        kind = key.partition(".")[0]
        owners = self._owners(key)
        if owners:
            line += f"; it belongs to {' and '.join(owners)}"
        if kind in KINDS and "experiment/" in self.sources.get(key, ""):
            line += f". The preset sets it for another {kind}: choose that one, or drop the preset."
        return line

    def _owners(self, key: str) -> list[str]:
        """Other plugins of the same kind that do have the key."""
        kind, _, field_name = key.rpartition(".")
        owners = []
        for name in self.registry.names(kind):
            try:
                config_class = self.registry.load_config_class(kind, name)
            except PluginError:
                continue  # It is not the chosen one, and this only looks for a hint.
            if field_name in config_class.model_fields:
                owners.append(f"{kind}={name}")
        return owners

    def _value_at(self, key: str) -> Any:
        value: Any = self.values
        for part in key.split("."):
            value = value.get(part, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        return value


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _leaves(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [leaf for name, part in value.items() for leaf in _leaves(f"{key}.{name}", part)]
    return [key]
