"""`tokenloom plugins`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugin_packages import install_package, plugin_source

RunCli = Callable[..., tuple[int, str, str]]


def test_the_table_shows_kind_name_package_version_contract_and_capabilities(run_cli: RunCli) -> None:
    code, out, _ = run_cli("plugins")
    assert code == 0
    (row,) = [line.split() for line in out.splitlines() if line.split()[:2] == ["attention", "torch_sdpa"]]
    assert row[:5] == ["attention", "torch_sdpa", "tokenloom", "0.1.0", "1.1"]
    assert "cpu" in row[5]


def test_json_holds_every_plugin_with_its_capabilities(run_cli: RunCli) -> None:
    code, out, _ = run_cli("plugins", "--json")
    listing = json.loads(out)
    by_name = {(plugin["kind"], plugin["name"]): plugin for plugin in listing["plugins"]}
    assert code == 0
    assert by_name["cache", "hash"]["sub_kinds"] == {"cache.eviction": "lru"}
    assert "tree_mask" in by_name["attention", "torch_sdpa"]["capabilities"]["flags"]
    assert [kind for kind, _ in by_name] == sorted((kind for kind, _ in by_name), key=[k for k, _ in by_name].index)


@pytest.mark.usefixtures("fresh_registry")
def test_broken_and_refused_packages_are_shown_with_the_reason(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package(tmp_path / "a", monkeypatch, "cli_broken", "import no_module_of_this_name")
    source = plugin_source('PluginInfo("scheduler", "future", "cli_future:Sched", (9, 0), "")')
    install_package(tmp_path / "b", monkeypatch, "cli_future", source, version="3.1")
    code, out, _ = run_cli("plugins")
    assert code == 0
    assert "No module named 'no_module_of_this_name'" in out
    assert "this core speaks 1.3" in out
    listing = json.loads(run_cli("plugins", "--json")[1])
    assert [broken["package"] for broken in listing["broken"]] == ["cli-broken"]
    (future,) = [plugin for plugin in listing["plugins"] if plugin["name"] == "future"]
    assert (future["package"], future["version"], future["contract"]) == ("cli-future", "3.1", "9.0")
    assert "9.0" in future["refusal"]


@pytest.mark.usefixtures("fresh_registry")
def test_equal_names_stop_the_listing_naming_both_packages(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = plugin_source('PluginInfo("scheduler", "fcfs", "cli_twin:Sched", (1, 0), "")')
    install_package(tmp_path, monkeypatch, "cli_twin", source)
    code, _, err = run_cli("plugins")
    assert code == 2
    assert "one from package cli-twin, one from package tokenloom" in err


def test_it_imports_neither_torch_nor_hydra() -> None:
    code = (
        "import sys; from tokenloom.cli import main; main(['plugins']);"
        "print([name for name in ('torch', 'hydra', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
