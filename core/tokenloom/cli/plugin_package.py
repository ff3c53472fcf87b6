"""Writes a plugin package from templates: settings, class, YAML and test of one kind, ready to install."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, REQUEST_KINDS

__all__ = ["TEMPLATED_KINDS", "usage", "write_plugin_package"]

_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a template of one kind needs to be told.

    Attributes:
        summary: one line of the example that the template is.
        interface: module that documents the contract.
        extra: further arguments of its PluginInfo, as source lines.
        parent: override that makes the plugin's group available; "" for kinds that an engine always has.
    """

    summary: str
    interface: str
    extra: tuple[str, ...] = ()
    parent: str = ""


TEMPLATED_KINDS: Mapping[str, _Kind] = {
    "attention": _Kind(
        "Dense attention, one request at a time.",
        "tokenloom.interfaces.attention",
        ('capabilities=Capabilities(flags=frozenset({"sliding_window", "soft_cap", "tree_mask"})),',),
    ),
    "scheduler": _Kind("Shortest job first.", "tokenloom.interfaces.scheduler"),
    "scheduler.victim": _Kind(
        "Preempts the request with the least computed tokens.",
        "tokenloom.interfaces.scheduling_policy",
        parent="scheduler=fcfs",
    ),
    "scheduler.admission": _Kind(
        "Keeps some blocks free for the requests that run.",
        "tokenloom.interfaces.scheduling_policy",
        parent="scheduler=fcfs",
    ),
    "cache": _Kind(
        "A prefix cache in two dictionaries.",
        "tokenloom.interfaces.cache",
        (
            'capabilities=Capabilities(flags=frozenset({"prefix_cache"})),',
            'sub_kinds={"cache.eviction": "lru"},',
        ),
    ),
    "cache.eviction": _Kind(
        "Evicts the block that was published longest ago.", "tokenloom.interfaces.cache", parent="cache=hash"
    ),
    "spec_decode": _Kind(
        "Proposes the last token again and again.",
        "tokenloom.interfaces.spec_decode",
        ('sub_kinds={"spec_decode.policy": "fixed"},',),
    ),
    "spec_decode.policy": _Kind(
        "Drafts while it pays.", "tokenloom.interfaces.spec_decode", parent="spec_decode=ngram"
    ),
    "quant": _Kind("Stores linear weights as they are.", "tokenloom.interfaces.quant"),
    "logits_processor": _Kind("Makes the token that came last less likely.", "tokenloom.interfaces.logits_processor"),
}
"""The kinds that have a template."""


def write_plugin_package(kind: str, name: str, output: Path) -> list[Path]:
    """Writes a package for a plugin called `name` into a new folder below `output`.

    Returns:
        The files written, pyproject.toml first.

    Raises:
        ConfigError: there is no template of the kind, the name is no legal one, or the folder exists.
    """
    _check_kind(kind)
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(f"plugin name {name!r} must be lower case words joined by underscores, and no Python word")
    module = f"{name}_{kind.rpartition('.')[2]}"
    folder = output / module.replace("_", "-")
    if folder.exists():
        raise ConfigError(f"{folder} exists already; choose another name or --output")
    words = _words(kind, name, module)
    written = []
    for target, template in _files(kind, name, module).items():
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if template is None else _fill(template, words), encoding="utf-8")
        written.append(path)
    return written


def usage(kind: str, name: str) -> str:
    """What to write on the command line to use a plugin, with the choice of its kind's parent."""
    own = f"'logits_processors={{{name}:{{}}}}'" if kind in REQUEST_KINDS else f"{kind}={name}"
    return " ".join(filter(None, (TEMPLATED_KINDS[kind].parent, own)))


def _files(kind: str, name: str, module: str) -> dict[str, str | None]:
    """Files of a package by template; None is an empty file. No config group has what requests choose."""
    variant = "request_" if kind in REQUEST_KINDS else ""
    files: dict[str, str | None] = {
        "pyproject.toml": "package/pyproject.toml",
        "README.md": f"package/{variant}README.md",
        f"{module}/__init__.py": f"package/{'request_init' if variant else '__init__'}.py",
        f"{module}/py.typed": None,
        f"{module}/{name}.py": f"{kind}/plugin.py",
    }
    if kind not in REQUEST_KINDS:
        files[f"{module}/conf/{kind.replace('.', '/')}/{name}.yaml"] = f"{kind}/conf.yaml"
    return {**files, f"tests/test_{name}.py": f"{kind}/test.py"}


def _check_kind(kind: str) -> None:
    if kind in TEMPLATED_KINDS:
        return
    if kind == "executor":
        raise ConfigError(
            "kind 'executor' has no template: an executor owns the model and its memory, too much for a skeleton; "
            "start from tokenloom/executors/local.py"
        )
    near = did_you_mean(kind, CONTRACT_VERSIONS)
    raise ConfigError(f"there is no kind {kind!r}; choose one of {', '.join(TEMPLATED_KINDS)}.{near}")


def _words(kind: str, name: str, module: str) -> dict[str, str]:
    facts = TEMPLATED_KINDS[kind]
    contract = CONTRACT_VERSIONS[kind]
    needs_capabilities = any("Capabilities(" in line for line in facts.extra)
    return {
        "kind": kind,
        "name": name,
        "module": module,
        "dist": module.replace("_", "-"),
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "group_path": kind.replace(".", "/"),
        "contract": f"({contract[0]}, {contract[1]})",
        "summary": facts.summary,
        "interface": facts.interface,
        "extra": "".join(f"\n            {line}" for line in facts.extra),
        "plugin_imports": "Capabilities, PluginInfo, hookimpl" if needs_capabilities else "PluginInfo, hookimpl",
        "usage": usage(kind, name),
        "version": version("tokenloom"),
    }


def _fill(template: str, words: Mapping[str, str]) -> str:
    source: Traversable = files("tokenloom.cli") / "plugin_template"
    for part in f"{template}.tmpl".split("/"):
        source = source / part
    return Template(source.read_text(encoding="utf-8")).substitute(words)
