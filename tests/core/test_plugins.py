"""Discovery and the registry: what loads, what is refused, and what a broken package may not hide."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.plugin_packages import entry_points_of, install_package, plugin_source
from tokenloom.errors import ConfigError, ContractVersionError, PluginError
from tokenloom.interfaces.contract import CONTRACT_VERSIONS
from tokenloom.plugins import PluginInfo, Registry, hookimpl

GOOD = plugin_source('PluginInfo("scheduler", "lifo", "{module}:Sched", (1, 0), "Last come, first served.")')

HOOK = "from tokenloom.plugins import hookimpl\n@hookimpl\n"


def good_source(module: str, name: str = "lifo") -> str:
    return GOOD.replace("{module}", module).replace('"lifo"', f'"{name}"')


def discover(folder: Path) -> Registry:
    return Registry.discover(entry_points_of(folder))


def module_with(*infos: PluginInfo) -> ModuleType:
    module = ModuleType("made_up")

    @hookimpl
    def tokenloom_plugins() -> list[PluginInfo]:
        return list(infos)

    module.__dict__["tokenloom_plugins"] = tokenloom_plugins
    return module


def info(kind: str = "scheduler", name: str = "x", contract: tuple[int, int] = (1, 0)) -> PluginInfo:
    return PluginInfo(kind, name, "made_up:Config", contract, "A plugin.")


def test_discover_finds_a_package_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_package(tmp_path, monkeypatch, "pkg_good", good_source("pkg_good"), version="2.3")
    plugin = discover(tmp_path).get("scheduler", "lifo")
    assert (plugin.package, plugin.version, plugin.label) == ("pkg-good", "2.3", "scheduler=lifo")


def test_discover_of_installed_packages_includes_the_third_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package(tmp_path, monkeypatch, "pkg_beside", good_source("pkg_beside"))
    registry = Registry.discover()
    assert {"lifo", "fcfs"} <= set(registry.names("scheduler"))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError"),
        ("def broken(:", "SyntaxError"),
        (f"{HOOK}def tokenloom_plugin(): return []", "unknown hook"),
        (f"{HOOK}def tokenloom_plugins(typo): return []", "typo"),
        (f"{HOOK}def tokenloom_plugins(): return [3]", "returned a int"),
        (f"{HOOK}def tokenloom_config_dir(): return '/nope'", "not a folder"),
        (plugin_source('PluginInfo("scheduler", "Bad Name", "m:C", (1, 0), "")'), "plugin name 'Bad Name'"),
        (plugin_source('PluginInfo("scheduler", "bad", "os.system", (1, 0), "")'), "must be 'module:Class'"),
        (
            plugin_source('PluginInfo("scheduler", "bad", "m:C", (1, 0), "", sub_kinds={"cache.eviction": "lru"})'),
            "not of its kind",
        ),
    ],
)
def test_discover_reports_a_broken_package_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    install_package(tmp_path / "a", monkeypatch, "pkg_a_broken", source)
    install_package(tmp_path / "b", monkeypatch, "pkg_b_fine", good_source("pkg_b_fine"))
    registry = Registry.discover([*entry_points_of(tmp_path / "a"), *entry_points_of(tmp_path / "b")])
    assert registry.names("scheduler") == ("lifo",)
    (broken,) = registry.broken
    assert broken.package == "pkg-a-broken"
    assert reason in broken.error


def test_get_blames_broken_packages_when_the_name_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_package(tmp_path / "a", monkeypatch, "pkg_lost", "import nothing_of_this_name")
    install_package(tmp_path / "b", monkeypatch, "pkg_here", good_source("pkg_here"))
    registry = Registry.discover([*entry_points_of(tmp_path / "a"), *entry_points_of(tmp_path / "b")])
    with pytest.raises(PluginError, match=r"(?s)scheduler=lost: .*lifo.*pkg-lost .*nothing_of_this_name"):
        registry.get("scheduler", "lost")
    assert registry.get("scheduler", "lifo").package == "pkg-here"


def test_get_of_an_unknown_name_lists_what_exists_and_near_matches() -> None:
    registry = Registry.from_modules([module_with(info(name="fcfs"), info(name="priority"))])
    with pytest.raises(ConfigError, match=r"scheduler=prioriti: .*fcfs, priority.*Did you mean 'priority'\?"):
        registry.get("scheduler", "prioriti")


def test_discover_refuses_equal_names_naming_both_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, name in (("a", "pkg_one"), ("b", "pkg_two")):
        install_package(tmp_path / folder, monkeypatch, name, good_source(name))
    points = [*entry_points_of(tmp_path / "a"), *entry_points_of(tmp_path / "b")]
    with pytest.raises(PluginError, match=r"scheduler=lifo: one from package pkg-one, one from package pkg-two"):
        Registry.discover(points)


def test_discover_accepts_equal_entry_point_names_of_two_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, name, plugin in (("a", "pkg_first", "one"), ("b", "pkg_second", "two")):
        install_package(tmp_path / folder, monkeypatch, name, good_source(name, plugin))
    registry = Registry.discover([*entry_points_of(tmp_path / "a"), *entry_points_of(tmp_path / "b")])
    assert registry.names("scheduler") == ("one", "two")
    assert not registry.broken


@pytest.mark.parametrize("contract", [(2, 0), (0, 9), (1, 4)])
def test_get_refuses_another_major_and_a_newer_minor(contract: tuple[int, int]) -> None:
    registry = Registry.from_modules([module_with(info(contract=contract), info(name="fine"))])
    written_for = rf"scheduler=x .*contract {contract[0]}\.{contract[1]}.*speaks 1\.3"
    with pytest.raises(ContractVersionError, match=written_for):
        registry.get("scheduler", "x")
    assert registry.names("scheduler") == ("fine",)
    assert {plugin.info.name for plugin in registry.plugins("scheduler")} == {"x", "fine"}


def test_get_refuses_an_unknown_kind() -> None:
    registry = Registry.from_modules([module_with(info(kind="teleporter"))])
    with pytest.raises(ContractVersionError, match=r"teleporter=x .*kind 'teleporter' is not known"):
        registry.get("teleporter", "x")


def test_load_config_class_imports_the_class_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = good_source("pkg_lazy.inner")
    install_package(tmp_path, monkeypatch, "pkg_lazy", source)
    (tmp_path / "pkg_lazy" / "inner.py").write_text(good_source("pkg_lazy.inner"))
    registry = discover(tmp_path)
    assert "pkg_lazy.inner" not in sys.modules
    assert registry.load_config_class("scheduler", "lifo").__module__ == "pkg_lazy.inner"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("pkg_wrong.nowhere:Sched", "No module named 'pkg_wrong.nowhere'"),
        ("pkg_wrong:Missing", "has no class Missing"),
        ("pathlib:Path", "not a subclass of PluginConfig"),
    ],
)
def test_load_config_class_names_plugin_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, reason: str
) -> None:
    source = plugin_source(f'PluginInfo("scheduler", "lifo", "{target}", (1, 0), "")')
    install_package(tmp_path, monkeypatch, "pkg_wrong", source)
    with pytest.raises(PluginError, match=r"scheduler=lifo \(package pkg-wrong 1\.5\) cannot be loaded") as caught:
        discover(tmp_path).load_config_class("scheduler", "lifo")
    assert reason in str(caught.value)


def test_load_config_class_never_resolves_an_unregistered_target() -> None:
    with pytest.raises(ConfigError, match="no such scheduler"):
        Registry.from_modules([]).load_config_class("scheduler", "os:system")


def test_warn_of_broken_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install_package(tmp_path, monkeypatch, "pkg_warned", "import nothing_of_this_name")
    registry = discover(tmp_path)
    with caplog.at_level(logging.WARNING):
        registry.warn_of_broken()
        registry.warn_of_broken()
    assert [record.getMessage().count("pkg-warned") for record in caplog.records] == [1]


def test_notify_reaches_every_package_though_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[object] = []
    failing, listening = ModuleType("failing"), ModuleType("listening")

    @hookimpl
    def tokenloom_engine_started(summary: object) -> None:
        raise RuntimeError("observer is broken")

    failing.__dict__["tokenloom_engine_started"] = tokenloom_engine_started
    failing.__dict__["tokenloom_engine_stopped"] = hookimpl(lambda summary: heard.append(summary))
    listening.__dict__["tokenloom_engine_started"] = hookimpl(lambda summary: heard.append(summary))
    registry = Registry.from_modules([failing, listening])
    with caplog.at_level(logging.ERROR):
        registry.notify_engine_started({"step": 1})
    registry.notify_engine_stopped({"step": 2})
    assert heard == [{"step": 1}, {"step": 2}]
    assert "failing" in caplog.text
    assert "observer is broken" in caplog.text


def test_registering_one_module_twice_is_reported() -> None:
    module = module_with(info())
    registry = Registry.from_modules([module, module])
    assert registry.names("scheduler") == ("x",)
    assert "already registered" in registry.broken[0].error


def test_installed_plugins_speak_this_cores_contracts() -> None:
    registry = Registry.discover()
    own = [plugin for plugin in registry.plugins() if plugin.package == "tokenloom"]
    assert {plugin.info.kind for plugin in own} == set(CONTRACT_VERSIONS)
    assert not [plugin.refusal for plugin in own if plugin.refusal]
    assert not [broken for broken in registry.broken if broken.package == "tokenloom"]


def test_listing_plugins_imports_no_torch_and_no_hydra() -> None:
    code = (
        "import sys; from tokenloom.plugins import default_registry; assert default_registry().plugins();"
        "print([name for name in ('torch', 'hydra', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
