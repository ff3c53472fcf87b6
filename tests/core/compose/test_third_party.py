"""Plugins and config groups of other packages take part like the built-in ones."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.plugin_packages import install_package, plugin_source
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError, ContractVersionError, PluginError
from tokenloom.plugins import Registry

LIFO_YAML = "defaults:\n  - victim: last_in\n  - _self_\nname: lifo\nmax_num_seqs: 5\n"


def parent_source(module: str, name: str = "lifo", conf: bool = True) -> str:
    declared = (
        f'PluginInfo("scheduler", "{name}", "{module}:Parent", (1, 0), "", sub_kinds={{"scheduler.victim": "last_in"}})'
    )
    return plugin_source(declared, f'PluginInfo("quant", "sizes_{name}", "{module}:Config", (1, 0), "")', conf=conf)


def test_a_third_party_name_works_in_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"scheduler/lifo.yaml": LIFO_YAML, "experiment/short.yaml": "# @package _global_\nengine:\n  seed: 4\n"}
    install_package(tmp_path, monkeypatch, "tp_lifo", parent_source("tp_lifo"), conf=conf)
    composed = compose_config(["scheduler=lifo", "experiment=short"], registry=Registry.discover())
    assert composed.engine.scheduler.name == "lifo"
    assert composed.to_dict()["scheduler"] == {
        "name": "lifo",
        "max_num_seqs": 5,
        "max_num_batched_tokens": 2048,
        "preempt_mode": "recompute",
        "partial_preemption": False,
        "max_queued_requests": None,
        "max_queued_tokens": None,
        "victim": {"name": "last_in"},
    }
    assert composed.sources["scheduler.max_num_seqs"] == "tp-lifo:scheduler/lifo.yaml"
    assert composed.sources["engine.seed"] == "tp-lifo:experiment/short.yaml"
    assert composed.sources["scheduler.max_num_batched_tokens"] == "default"


def test_lists_of_yaml_and_overrides_become_tuples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"quant/sizes_x.yaml": "name: sizes_x\nsizes: [4, 5, 6]\n"}
    install_package(tmp_path, monkeypatch, "tp_sizes", parent_source("tp_sizes", "x"), conf=conf)
    registry = Registry.discover()
    assert compose_config(["quant=sizes_x"], registry=registry).to_dict()["quant"]["sizes"] == [4, 5, 6]
    composed = compose_config(["quant=sizes_x", "quant.sizes=[7]"], registry=registry)
    assert dict(composed.engine.quant.config)["sizes"] == (7,)
    with pytest.raises(ConfigError, match=r"quant\.sizes=\[a\]: must be a valid integer"):
        compose_config(["quant=sizes_x", "quant.sizes=[a]"], registry=registry)


def test_a_plugin_without_its_yaml_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_package(tmp_path, monkeypatch, "tp_bare", parent_source("tp_bare", "bare", conf=False))
    with pytest.raises(PluginError, match=r"scheduler=bare: package tp-bare .* no file scheduler/bare\.yaml"):
        compose_config(["scheduler=bare"], registry=Registry.discover())


def test_a_yaml_without_its_plugin_is_explained(tmp_path: Path) -> None:
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "ghost.yaml").write_text("name: ghost\n")
    with pytest.raises(ConfigError, match=r"scheduler=ghost: no such scheduler; choose one of deadline, .*fcfs"):
        compose_config(["scheduler=ghost"], config_dir=tmp_path)


@pytest.mark.parametrize("option", ["scheduler/fcfs.yaml", "cache/eviction/lru.yaml", "experiment/debug.yaml"])
def test_an_option_equal_to_a_builtin_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    source = parent_source("tp_shadow", "shadow")
    install_package(tmp_path, monkeypatch, "tp_shadow", source, conf={option: "name: fcfs\n"})
    with pytest.raises(PluginError, match=rf"{option} exists twice: .*\(tokenloom\).*\(tp-shadow\)"):
        compose_config(registry=Registry.discover())


def test_equal_options_of_two_packages_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tp_left", "tp_right"):
        conf = {"experiment/same.yaml": "# @package _global_\n"}
        install_package(tmp_path / name, monkeypatch, name, parent_source(name, name), conf=conf)
    with pytest.raises(PluginError, match=r"experiment/same\.yaml exists twice: .*\(tp-left\).*\(tp-right\)"):
        compose_config(registry=Registry.discover())


def test_a_broken_package_warns_and_leaves_other_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install_package(tmp_path, monkeypatch, "tp_broken", "import no_module_of_this_name")
    registry = Registry.discover()
    with caplog.at_level(logging.WARNING):
        assert compose_config(registry=registry).engine.scheduler.name == "fcfs"
        compose_config(registry=registry)
    assert [record.getMessage().count("tp-broken") for record in caplog.records] == [1]
    with pytest.raises(PluginError, match=r"(?s)scheduler=lost: .*tp-broken .*no_module_of_this_name"):
        compose_config(["scheduler=lost"], registry=registry)


def test_another_contract_version_stops_only_runs_that_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = plugin_source('PluginInfo("scheduler", "future", "tp_future:Sched", (9, 0), "")', conf=True)
    install_package(tmp_path, monkeypatch, "tp_future", source, conf={"scheduler/future.yaml": "name: future\n"})
    registry = Registry.discover()
    assert compose_config(registry=registry).engine.scheduler.name == "fcfs"
    with pytest.raises(ContractVersionError, match=r"scheduler=future .*contract 9\.0, this core speaks 1\.3"):
        compose_config(["scheduler=future"], registry=registry)


def test_a_kind_of_a_newer_core_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = plugin_source('PluginInfo("teleporter", "fast", "tp_kind:Config", (1, 0), "")')
    install_package(tmp_path, monkeypatch, "tp_kind", source)
    with pytest.raises(
        ContractVersionError, match=r"teleporter=fast \(package tp-kind\): kind 'teleporter' is not known"
    ):
        compose_config(["teleporter=fast"], registry=Registry.discover())


def test_a_declared_part_without_a_field_is_the_plugins_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = 'PluginInfo("scheduler", "odd", "tp_odd:Sched", (1, 0), "", sub_kinds={"scheduler.victim": "last_in"})'
    source = plugin_source(declared, conf=True)
    install_package(tmp_path, monkeypatch, "tp_odd", source, conf={"scheduler/odd.yaml": "name: odd\n"})
    with pytest.raises(PluginError, match=r"scheduler=odd declares the part scheduler\.victim, .* no field 'victim'"):
        compose_config(["scheduler=odd"], registry=Registry.discover())
