"""What a user installs: the wheel in a fresh environment outside the checkout, and the sdist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "tokenloom": ROOT / "core",
    "tokenloom_attention": ROOT / "plugins" / "attention",
    "tokenloom_schedulers": ROOT / "plugins" / "schedulers",
    "tokenloom_cache": ROOT / "plugins" / "cache",
    "tokenloom_spec_decode": ROOT / "plugins" / "spec_decode",
    "tokenloom_quant": ROOT / "plugins" / "quant",
}
OFFLINE = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")

pytestmark = pytest.mark.slow


def run(command: Sequence[str | Path], cwd: Path) -> str:
    """Runs a command that must succeed, with nothing of this process's environment that leads back to the checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(source: Path, folder: Path) -> Path:
    run([sys.executable, "-m", "pip", "wheel", *OFFLINE, "--no-build-isolation", "-w", folder, source], folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment that holds the wheel, and sees the dependencies of this one."""

    bin: Path
    site_packages: Path
    cwd: Path

    def run(self, *command: str) -> str:
        return run([self.bin / command[0], *command[1:]], self.cwd)

    def json(self, *command: str) -> Any:
        return json.loads(self.run(*command))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("fresh")
    environment = folder / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", environment], folder)
    run([sys.executable, "-m", "pip", "--python", environment, "install", *OFFLINE, wheel], folder)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    # Lines of a .pth file join sys.path, but .pth files found there (this checkout's editable install) are not read.
    (site_packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    (folder / "elsewhere").mkdir()
    return Installed(environment / "bin", site_packages.resolve(), folder / "elsewhere")


def test_wheel_holds_every_source_and_config_file(wheel: Path) -> None:
    wanted = {
        path.relative_to(base).as_posix()
        for package, base in PACKAGES.items()
        for path in (base / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    wanted |= {f"tokenloom/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert wanted - names_in(wheel) == set()


def test_wheel_holds_nothing_else(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in names_in(wheel)}
    (info,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops - {info} == set(PACKAGES)
    assert f"{info}/licenses/LICENSE" in names_in(wheel)
    assert not [name for name in names_in(wheel) if "__pycache__" in name or name.endswith(".pyc")]


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_packages_come_from_the_wheel(installed: Installed, package: str) -> None:
    found = installed.run("python", "-c", f"import {package}; print({package}.__file__)").strip()
    assert Path(found) == installed.site_packages / package / "__init__.py"


def test_conf_comes_from_the_wheel(installed: Installed) -> None:
    program = "from tokenloom.compose.conf_folders import builtin_conf_dir as d; print(d())"
    found = installed.run("python", "-c", program).strip()
    assert Path(found) == installed.site_packages / "tokenloom" / "conf"


def test_tokenloom_plugins_lists_every_kind(installed: Installed) -> None:
    found = installed.json("tokenloom", "plugins", "--json")
    assert found["broken"] == []
    assert {plugin["package"] for plugin in found["plugins"]} == {"tokenloom"}
    kinds = {plugin["kind"] for plugin in found["plugins"]}
    assert {"attention", "scheduler", "cache", "spec_decode", "quant", "executor"} <= kinds
    names = [plugin["name"] for plugin in found["plugins"] if plugin["kind"] == "attention"]
    assert "torch_sdpa" in names
    assert "torch_sdpa" in installed.run("tokenloom", "plugins")


def test_tokenloom_config_composes(installed: Installed) -> None:
    found = installed.json("tokenloom", "config", "experiment=debug", "cache.block_size=32", "--json")
    assert (found["config"]["cache"]["name"], found["config"]["cache"]["block_size"]) == ("hash", 32)
    assert found["sources"]["debug.checks"] == "conf/experiment/debug.yaml"
    assert "scheduler.max_num_seqs" in installed.run("tokenloom", "config")


def test_the_sdist_holds_the_project_and_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path], ROOT)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml"}
    wanted |= {"conf/config.yaml", "tests/test_wheel.py", "docs/architecture.md", "core/tokenloom/engine.py"}
    wanted |= {"examples/third_party_plugin/pyproject.toml"}
    assert wanted - names == set()
    assert names_in(build_wheel(sdist, tmp_path)) == names_in(wheel)
