"""`tokenloom doctor`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.plugin_packages import install_package
from tokenloom.cli.doctor import obstacles
from tokenloom.cli.machine import LIBRARIES, examine_machine, library_versions
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, Capabilities, PluginInfo
from tokenloom.plugins import Registry, default_registry, hookimpl

RunCli = Callable[..., tuple[int, str, str]]


def registry_with(info: PluginInfo) -> Registry:
    module = ModuleType("made_up")

    @hookimpl
    def tokenloom_plugins() -> list[PluginInfo]:
        return [info]

    module.__dict__["tokenloom_plugins"] = tokenloom_plugins
    return Registry.from_modules([module])


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (PluginInfo("quant", "x", "m:C", (1, 0), "", Capabilities(devices=("cuda",))), "needs a device of cuda"),
        (
            PluginInfo("quant", "x", "m:C", (1, 0), "", Capabilities(requires=("no_such_mod",))),
            "no_such_mod is not inst",
        ),
        (PluginInfo("quant", "x", "no_such_mod:C", (1, 0), ""), "No module named 'no_such_mod'"),
        (PluginInfo("quant", "x", "m:C", (9, 0), ""), "this core speaks {}.{}".format(*CONTRACT_VERSIONS["quant"])),
    ],
)
def test_obstacles_say_why_a_plugin_cannot_run_here(info: PluginInfo, reason: str) -> None:
    registry = registry_with(info)
    assert reason in "; ".join(obstacles(registry.plugins()[0], registry, ("cpu",)))


def test_the_builtin_plugins_have_no_obstacles_on_a_cpu() -> None:
    registry = default_registry()
    found = {
        plugin.label: obstacles(plugin, registry, ("cpu",))
        for plugin in registry.plugins()
        if "cpu" in (plugin.info.capabilities.devices or ("cpu",))
    }
    assert "attention=torch_sdpa" in found
    assert not any(found.values()), found


@pytest.mark.usefixtures("fresh_registry")
def test_doctor_shows_machine_libraries_plugins_and_model(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path))
    code, out, _ = run_cli("doctor")
    assert code == 0
    for part in ("CPUs usable", "GiB", "torch", "scheduler=fcfs", "no; it will be fetched into"):
        assert part in out


@pytest.mark.usefixtures("fresh_registry")
def test_doctor_finds_the_cached_default_model(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path))
    model = tmp_path / "models" / "pypi" / "any" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    model.parent.mkdir(parents=True)
    model.touch()
    assert f"yes, {model}" in run_cli("doctor")[1]


@pytest.mark.usefixtures("fresh_registry")
@pytest.mark.parametrize(
    ("value", "expected"),
    [("0", "on"), ("1", "off, by TOKENLOOM_OFFLINE=1"), ("maybe", "TOKENLOOM_OFFLINE must be 1 or 0")],
)
def test_doctor_shows_caches_and_network(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, expected: str
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("TOKENLOOM_OFFLINE", value)
    code, out, _ = run_cli("doctor")
    assert code == 0
    (network,) = [line for line in out.splitlines() if line.strip().startswith("network")]
    assert network.split(maxsplit=1)[1].startswith(expected)
    assert str(tmp_path / "models") in out
    assert "Hugging Face cache" in out


@pytest.mark.usefixtures("fresh_registry")
def test_doctor_fails_when_a_package_is_broken(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package(tmp_path, monkeypatch, "doc_broken", "import no_module_of_this_name")
    code, out, _ = run_cli("doctor")
    assert code == 1
    assert "doc-broken" in out


def test_machine_facts_are_plausible() -> None:
    machine = examine_machine()
    assert machine.num_usable_cpus >= 1
    assert 0 < machine.available_bytes <= machine.memory_bytes


def test_library_versions_cover_the_list() -> None:
    versions = library_versions()
    assert tuple(versions) == LIBRARIES
    assert versions["tokenloom"] is not None
