"""`tokenloom plugins`: every installed plugin, its package, contract and capabilities; `check`. Imports no torch."""

from __future__ import annotations

from typing import Any

import click

from tokenloom.cli.console import print_json, print_table
from tokenloom.cli.plugins_check import check
from tokenloom.interfaces.contract import CONTRACT_VERSIONS
from tokenloom.plugins import RegisteredPlugin, Registry, default_registry

__all__ = ["kind_order", "plugins"]


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.pass_context
def plugins(context: click.Context, as_json: bool) -> None:
    """List the installed plugins, or check some.

    The list shows kind, name, package, version, contract and capabilities.
    """
    if context.invoked_subcommand is None:
        _list(as_json)


plugins.add_command(check)


def _list(as_json: bool) -> None:
    registry = default_registry()
    found = sorted(registry.plugins(), key=kind_order)
    if as_json:
        print_json({"plugins": [_as_json(plugin) for plugin in found], "broken": _broken_as_json(registry)})
        return
    columns = ("kind", "name", "package", "version", "contract", "capabilities", "summary")
    print_table(columns, [_row(plugin) for plugin in found])
    refused = [plugin for plugin in found if plugin.refusal is not None]
    if refused:
        print_table(("refused", "package", "why"), [(p.label, p.package, p.refusal or "") for p in refused])
    if registry.broken:
        rows = [(broken.package, broken.entry_point, broken.error) for broken in registry.broken]
        print_table(("broken package", "entry point", "why"), rows)


def kind_order(plugin: RegisteredPlugin) -> tuple[int, str, str]:
    """Sorts plugins by kind, in the order of the contracts, then by name."""
    kinds = list(CONTRACT_VERSIONS)
    kind = plugin.info.kind
    return (kinds.index(kind) if kind in kinds else len(kinds), kind, plugin.info.name)


def _row(plugin: RegisteredPlugin) -> tuple[str, ...]:
    info = plugin.info
    able = "refused, see below" if plugin.refusal is not None else info.capabilities.summary()
    return (info.kind, info.name, plugin.package, plugin.version, _contract(plugin), able, info.summary)


def _contract(plugin: RegisteredPlugin) -> str:
    return ".".join(str(part) for part in plugin.info.contract)


def _as_json(plugin: RegisteredPlugin) -> dict[str, Any]:
    info, can = plugin.info, plugin.info.capabilities
    return {
        "kind": info.kind,
        "name": info.name,
        "package": plugin.package,
        "version": plugin.version,
        "contract": _contract(plugin),
        "summary": info.summary,
        "config": info.config,
        "sub_kinds": dict(info.sub_kinds),
        "capabilities": {
            "devices": can.devices,
            "dtypes": can.dtypes,
            "head_dims": can.head_dims,
            "block_size_multiple": can.block_size_multiple,
            "flags": sorted(can.flags),
            "needs": dict(can.needs),
            "requires": can.requires,
        },
        "refusal": plugin.refusal,
    }


def _broken_as_json(registry: Registry) -> list[dict[str, str]]:
    return [{"package": b.package, "entry_point": b.entry_point, "error": b.error} for b in registry.broken]
