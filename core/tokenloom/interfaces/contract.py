"""What all contracts share: kinds, versions, capabilities, and the config base class of every plugin.

A plugin is four things: a frozen pydantic `Config` (subclass of `PluginConfig`), a final class that implements the
contract, a YAML file that lists the Config's fields, and one `PluginInfo` line. The core composes the YAML with Hydra,
validates it into the Config, and calls `Config.build(context)` to get the object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from tokenloom.settings_base import Settings

__all__ = [
    "CONTRACT_VERSIONS",
    "KINDS",
    "REQUEST_KINDS",
    "SUB_KINDS",
    "Capabilities",
    "ContractVersion",
    "PluginChoice",
    "PluginConfig",
    "PluginInfo",
    "is_compatible",
]

ContractVersion = tuple[int, int]
"""(major, minor). Majors must be equal; a plugin's minor must not be newer than the core's."""

CONTRACT_VERSIONS: Mapping[str, ContractVersion] = {
    "attention": (1, 1),
    "scheduler": (1, 3),
    "scheduler.victim": (1, 0),
    "scheduler.admission": (1, 0),
    "cache": (1, 1),
    "cache.eviction": (1, 0),
    "spec_decode": (1, 4),
    "spec_decode.policy": (1, 1),
    "quant": (1, 2),
    "executor": (1, 3),
    "logits_processor": (1, 0),
}
"""The contract version that this core speaks, for each kind. The same numbers stand in the interface modules' docs."""

REQUEST_KINDS: tuple[str, ...] = ("logits_processor",)
"""Kinds that each request chooses for itself, as many as it likes; no group of the engine's config has them."""

KINDS: tuple[str, ...] = tuple(kind for kind in CONTRACT_VERSIONS if "." not in kind and kind not in REQUEST_KINDS)
"""Kinds that an engine has exactly one plugin of, in the order in which they are shown."""

SUB_KINDS: tuple[str, ...] = tuple(kind for kind in CONTRACT_VERSIONS if "." in kind)
"""Kinds nested in a plugin's own config: `cache.eviction` is the field `eviction` of a cache plugin."""


def is_compatible(plugin: ContractVersion, core: ContractVersion) -> bool:
    """Whether a plugin written for contract version `plugin` runs on a core that speaks `core`.

    A minor version only adds: an older minor runs; a newer minor may rely on what this core lacks and is refused.
    """
    return plugin[0] == core[0] and plugin[1] <= core[1]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a plugin can do, as plain data (strings, not torch dtypes), so that listing plugins imports no torch.

    `None` means "no restriction". The core compares these with the model and the other plugins *before* weights are
    loaded, collects every reason against a combination, and refuses it with all of them.

    Attributes:
        devices: device types that the plugin runs on, e.g. ("cpu", "cuda").
        dtypes: activation dtypes, e.g. ("float32", "bfloat16").
        head_dims: attention head sizes; only read from attention plugins.
        block_size_multiple: KV block sizes must be a multiple of this.
        flags: named abilities, e.g. "sliding_window", "soft_cap", "sinks", "tree_mask", "prefix_cache", "async_launch".
            A flag that is absent means the plugin cannot do it; "deterministic@cpu" means that it can on that type of
            device only. "whole_scores" says of attention that it holds all of a request's scores in memory, which
            experiments count. "own_files" says that it only reads files of its own format, so that nobody is advised to
            take it instead of another one.
        needs: flags that *other* plugins must have, as {kind: (flag, ...)}.
        requires: modules that must be importable for the plugin to run.
    """

    devices: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    head_dims: tuple[int, ...] | None = None
    block_size_multiple: int = 1
    flags: frozenset[str] = frozenset()
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    requires: tuple[str, ...] = ()

    def has_flag(self, flag: str, device: str) -> bool:
        """Whether the plugin can do `flag` on a type of device: it declares `flag`, or "`flag`@`device`"."""
        return flag in self.flags or f"{flag}@{device}" in self.flags

    def summary(self) -> str:
        """One line for tables, e.g. "cpu,cuda; float32,bfloat16; sliding_window, tree_mask"; it may wrap at flags."""
        lists = (self.devices, self.dtypes, self.head_dims)
        parts = [",".join(str(value) for value in values) for values in lists if values is not None]
        if self.flags:
            parts.append(", ".join(sorted(self.flags)))
        return "; ".join(parts) if parts else "any"


class PluginConfig(Settings, ABC):
    """Base class of every plugin's settings.

    Frozen, with unknown keys forbidden, no coercion (`true` never becomes 1) and finite numbers only; what can be off
    allows None. The plugin's name is not a field: the core looks up (kind, name) and validates the rest. A field whose
    type is `PluginChoice` is a nested plugin (a sub-kind) that the core validates on its own first.
    """

    @abstractmethod
    def build(self, context: Any) -> Any:
        """Constructs the plugin object.

        Args:
            context: what a plugin of this kind may know at build time; each kind's interface module states its type
                (e.g. `AttentionContext`).

        Returns:
            An instance of the kind's interface class.
        """

    def stands_for(self, device: str, dtype: str) -> PluginChoice | None:  # noqa: ARG002  (an answer, not a stub)
        """The plugin that this one means on this machine; None, as for nearly all, means itself.

        For plugins called `auto`. Asked when a config is composed: the answer takes this one's place, so that plans,
        results and the check of capabilities name what really runs.

        Args:
            device: `model.device`, which may be "auto" itself.
            dtype: `model.dtype`, likewise.
        """
        return None


@dataclass(frozen=True, slots=True)
class PluginChoice:
    """A chosen plugin with its validated settings: a top-level choice, or a Config field that holds a sub-kind."""

    kind: str
    name: str
    config: PluginConfig

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.is_instance_schema(cls)

    def build(self, context: Any) -> Any:
        """Constructs the plugin; see `PluginConfig.build`."""
        return self.config.build(context)


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One line that declares a plugin; returned from the hook `tokenloom_plugins`.

    Attributes:
        kind: one of `KINDS`, `SUB_KINDS` or `REQUEST_KINDS`.
        name: the word a user writes, e.g. `scheduler=fcfs`; lower case, digits and underscores.
        config: where the `PluginConfig` subclass lives, as "module:Class"; imported only when the plugin is used.
        contract: the contract version that the plugin was written for.
        summary: one line for `tokenloom plugins`.
        capabilities: what it can run.
        sub_kinds: names of the nested plugins it accepts by default, as {sub-kind: default name}.
    """

    kind: str
    name: str
    config: str
    contract: ContractVersion
    summary: str
    capabilities: Capabilities = field(default_factory=Capabilities)
    sub_kinds: Mapping[str, str] = field(default_factory=dict)
