"""The base of every conformance suite: which plugin is under test, how it is built, and what may be overridden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tokenloom.errors import PluginError
from tokenloom.interfaces.contract import Capabilities, PluginChoice, PluginConfig, PluginInfo
from tokenloom.plugin_target import load_target
from tokenloom.plugins import default_registry
from tokenloom.settings_validation import validated
from tokenloom.testing.suite_rules import SuiteType, check_suite

__all__ = ["PluginSuite", "build_choice"]


class PluginSuite(metaclass=SuiteType):
    """Tests of one contract, for one plugin. A suite of a kind derives from it; an author derives from that suite::

        class TestMine(SchedulerSuite):
            plugin = "my_scheduler"          # its registered name, or its PluginInfo
            settings = {"max_chunk_tokens": 64}

    Tests read `capabilities` and skip, with the reason, what the plugin does not claim. A test that cannot hold is
    overridden with `pytest.mark.xfail(reason=...)` on it. What would switch a demand of the contract off in silence is
    refused with a TypeError; `tokenloom.testing.suite_rules` says what.

    Attributes:
        kind: the contract; set by the suite.
        plugin: the plugin under test.
        settings: values of its Config that differ from the defaults. Nested plugins are given as `PluginChoice`.
    """

    kind: ClassVar[str] = ""
    plugin: ClassVar[str | PluginInfo] = ""
    settings: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_suite(cls, PluginSuite)

    @property
    def info(self) -> PluginInfo:
        """The declaration of the plugin under test."""
        if isinstance(self.plugin, PluginInfo):
            return self.plugin
        if not self.plugin:
            raise PluginError(f"{type(self).__name__} names no plugin; set the class attribute `plugin`")
        return default_registry().get(self.kind, self.plugin).info

    @property
    def capabilities(self) -> Capabilities:
        """What the plugin says that it can do."""
        return self.info.capabilities

    def make_config(self, **changes: Any) -> PluginConfig:
        """The plugin's Config: its defaults, `settings`, then `changes`."""
        return build_choice(self.info, {**self.settings, **changes}).config


def build_choice(info: PluginInfo, settings: Mapping[str, Any]) -> PluginChoice:
    """Validates a plugin's settings, nested plugins at the defaults that it declares unless `settings` has them.

    Raises:
        ConfigError: a setting is unknown or wrong.
        PluginError: the Config cannot be imported.
    """
    values = dict(settings)
    for sub_kind, name in info.sub_kinds.items():
        part = sub_kind.rpartition(".")[2]
        if part not in values:
            values[part] = build_choice(default_registry().get(sub_kind, name).info, {})
    config_class = load_target(info)
    return PluginChoice(info.kind, info.name, validated(config_class, values, f"{info.kind}={info.name}"))
