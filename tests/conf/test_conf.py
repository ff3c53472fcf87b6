"""The YAML files of conf/: they list every field, with the Config's own defaults, and a comment each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tokenloom.cli.experiment import ExperimentSettings
from tokenloom.compose import builtin_conf_dir, compose_config
from tokenloom.compose.config_keys import settings_models
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, REQUEST_KINDS, PluginChoice
from tokenloom.plugins import RegisteredPlugin, default_registry

CONF = builtin_conf_dir()
OWN_PLUGINS = [
    plugin
    for plugin in default_registry().plugins()
    if plugin.package == "tokenloom" and plugin.info.kind not in REQUEST_KINDS
]
FILES = sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml"))


def load(path: Path | str) -> dict[str, Any]:
    data = yaml.safe_load((CONF / path).read_text())
    assert isinstance(data, dict)
    return data


def plugin_file(plugin: RegisteredPlugin) -> Path:
    return Path(*plugin.info.kind.split(".")) / f"{plugin.info.name}.yaml"


@pytest.mark.parametrize("plugin", OWN_PLUGINS, ids=lambda plugin: plugin.label)
def test_yaml_of_each_plugin_lists_every_field_with_its_default(plugin: RegisteredPlugin) -> None:
    config_class = default_registry().load_config_class(plugin.info.kind, plugin.info.name)
    values = load(plugin_file(plugin))
    parts = {name for name, info in config_class.model_fields.items() if info.annotation is PluginChoice}
    defaults = {
        name: info.get_default(call_default_factory=True, validated_data={})
        for name, info in config_class.model_fields.items()
        if name not in parts
    }
    listed = values.pop("defaults", [])
    assert values.pop("name") == plugin.info.name
    assert values == {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
    named = {sub_kind.rpartition(".")[2]: default for sub_kind, default in plugin.info.sub_kinds.items()}
    assert {key: option for entry in listed if entry != "_self_" for key, option in entry.items()} == named
    assert parts == set(named)


def test_every_option_of_a_kind_is_a_registered_plugin() -> None:
    kinds = set(CONTRACT_VERSIONS)
    options = {path for path in FILES if ".".join(path.parts[:-1]) in kinds}
    assert options == {plugin_file(plugin) for plugin in OWN_PLUGINS}


@pytest.mark.parametrize("block", sorted(settings_models()))
def test_yaml_of_core_settings_lists_every_field_with_its_default(block: str) -> None:
    values = load("model/default.yaml") if block == "model" else load("config.yaml")[block]
    assert values == settings_models()[block]().model_dump()


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_file_has_a_comment_and_every_key_of_a_plugin_file_too(path: Path) -> None:
    lines = (CONF / path).read_text().splitlines()
    prose = [line for line in lines if line.startswith("# ") and not line.startswith("# @")]
    assert prose, "a file starts with a comment that says what it is"
    if path.parts[0] == "experiment":
        return
    body = [line for line in lines if ": " in line and not line.lstrip().startswith(("-", "#"))]
    assert not [line for line in body if "#" not in line and not line.startswith("name:")]


@pytest.mark.parametrize("path", [path for path in FILES if path.parts[0] == "experiment"], ids=str)
def test_every_preset_composes(path: Path) -> None:
    assert path.parts[0] == "experiment"
    assert (CONF / path).read_text().startswith("# @package _global_\n")
    # One that says what to compare is for the command that reads it.
    command = ExperimentSettings if "sweep" in load(path) else None
    assert compose_config([f"experiment={path.stem}"], command=command).choices["experiment"] == path.stem


@pytest.mark.parametrize("plugin", OWN_PLUGINS, ids=lambda plugin: plugin.label)
def test_every_plugin_can_be_chosen_by_its_name(plugin: RegisteredPlugin) -> None:
    kind, name = plugin.info.kind, plugin.info.name
    overrides = [f"{kind}={name}"]
    if "." in kind:
        parent = kind.partition(".")[0]
        owner = next(other for other in OWN_PLUGINS if kind in other.info.sub_kinds)
        overrides.insert(0, f"{parent}={owner.info.name}")
    block: Any = compose_config(overrides).to_dict()
    for part in kind.split("."):
        block = block[part]
    # This one stands for another one, which is what runs.
    assert (block["name"] == name) == ((kind, name) != ("attention", "auto"))
