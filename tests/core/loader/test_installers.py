"""Which installer is found, and the commands it gives."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tokenloom.errors import ModelError
from tokenloom.loader.installers import Installer, find_installer, run_command


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Pretends that only the named installers exist; the bundled pip lies in `tmp_path`."""

    def pretend(*available: str) -> None:
        ensurepip = importlib.machinery.ModuleSpec("ensurepip", None, origin=str(tmp_path / "__init__.py"))
        specs = {"pip": "pip" in available, "ensurepip": "ensurepip" in available}
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: ensurepip if specs[name] else None)
        monkeypatch.setattr(shutil, "which", lambda name: "/bin/uv" if name == "uv" and "uv" in available else None)
        monkeypatch.setattr(sysconfig, "get_config_var", lambda name: None)
        (tmp_path / "_bundled").mkdir(exist_ok=True)
        for version in ("23.2.1", "9.0", "24.0"):
            (tmp_path / "_bundled" / f"pip-{version}-py3-none-any.whl").touch()

    return pretend


def test_installer_is_pip_where_there_is_one(environment: Any, tmp_path: Path) -> None:
    environment("pip", "ensurepip", "uv")
    installer = find_installer()
    assert not installer.unpacks
    command = installer.command("some-dist==1.0", tmp_path)
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} <= set(command)
    assert command[command.index("--dest") + 1] == str(tmp_path)
    assert command[-1] == "some-dist==1.0"


def test_installer_without_pip_is_the_newest_bundled_one(environment: Any, tmp_path: Path) -> None:
    environment("ensurepip", "uv")
    installer = find_installer()
    assert not installer.unpacks
    command = installer.command("some-dist==1.0", tmp_path)
    assert command[:3] == [
        sys.executable,
        str(tmp_path / "_bundled" / "pip-24.0-py3-none-any.whl" / "pip"),
        "download",
    ]
    assert "--no-deps" in command


def test_installer_without_any_pip_is_uv(environment: Any, tmp_path: Path) -> None:
    environment("uv")
    installer = find_installer()
    assert installer.unpacks
    command = installer.command("some-dist==1.0", tmp_path)
    assert command[:3] == ["/bin/uv", "pip", "install"]
    assert "--no-deps" in command
    assert command[command.index("--only-binary") + 1] == ":all:"
    assert command[command.index("--target") + 1] == str(tmp_path)


def test_no_installer_at_all_is_a_model_error(environment: Any) -> None:
    environment()
    with pytest.raises(ModelError, match="needs pip or uv"):
        find_installer()


@pytest.mark.slow
def test_bundled_pip_of_this_python_runs_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else real(name))
    result = run_command([*find_installer().prefix, "--help"])
    assert result.exit_code == 0, result.stderr


def test_run_command_reports_exit_code_and_stderr() -> None:
    result = run_command([sys.executable, "-c", "import sys; sys.stderr.write('no luck'); sys.exit(3)"])
    assert (result.exit_code, result.stderr) == (3, "no luck")


def test_run_command_reports_a_program_that_does_not_exist(tmp_path: Path) -> None:
    result = run_command([str(tmp_path / "absent")])
    assert result.exit_code == 127
    assert "absent" in result.stderr


def test_installer_is_plain_data() -> None:
    assert Installer("x", ("a",), True) == Installer("x", ("a",), True)
