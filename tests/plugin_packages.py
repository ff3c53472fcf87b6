"""Writes small plugin packages with their metadata into a folder, as pip would have installed them.

Import it as `from tests.plugin_packages import install_package, entry_points_of`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import pytest

__all__ = ["PLUGIN_SOURCE", "entry_points_of", "install_package", "plugin_source"]

PLUGIN_SOURCE = """
from typing import Annotated, Any

from pydantic import Field

from tokenloom.interfaces.contract import Capabilities, PluginChoice, PluginConfig
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.plugins import PluginInfo, hookimpl


class Config(PluginConfig):
    size: Annotated[int, Field(ge=1, description="How large it is.")] = 3
    sizes: tuple[int, ...] = (1, 2)

    def build(self, context: Any) -> Any:
        return self


class Sched(SchedulerConfig):
    slack: float = 0.5

    def build(self, context: Any) -> Any:
        return self


class Parent(SchedulerConfig):
    victim: PluginChoice

    def build(self, context: Any) -> Any:
        return self

"""


def plugin_source(*declarations: str, conf: bool = False) -> str:
    """Source of a plugin module with the given PluginInfo expressions, and a config folder if asked."""
    listed = ",\n        ".join(declarations)
    source = f"{PLUGIN_SOURCE}\n@hookimpl\ndef tokenloom_plugins():\n    return [\n        {listed}\n    ]\n"
    if conf:
        source += (
            "\n@hookimpl\ndef tokenloom_config_dir():\n"
            "    from pathlib import Path\n    return Path(__file__).parent / 'conf'\n"
        )
    return source


def install_package(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    source: str,
    *,
    conf: Mapping[str, str] | None = None,
    version: str = "1.5",
) -> None:
    """Puts package `name` with one entry point on sys.path; its distribution is called `name` with dashes."""
    package = folder / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source)
    for path, text in (conf or {}).items():
        target = package / "conf" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    dist = name.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[tokenloom]\nplugins = {name}\n")
    sys.modules.pop(name, None)
    monkeypatch.syspath_prepend(str(folder))


def entry_points_of(folder: Path) -> list[EntryPoint]:
    """The tokenloom entry points of the packages in `folder` alone."""
    return [
        point for dist in distributions(path=[str(folder)]) for point in dist.entry_points if point.group == "tokenloom"
    ]
