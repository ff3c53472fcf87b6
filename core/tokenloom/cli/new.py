"""`tokenloom new`: skeletons to start from."""

from __future__ import annotations

from pathlib import Path

import click

from tokenloom.cli.plugin_package import TEMPLATED_KINDS, usage, write_plugin_package
from tokenloom.errors import ConfigError
from tokenloom.plugins import default_registry

__all__ = ["new"]


@click.group()
def new() -> None:
    """Write the skeleton of a plugin package."""


@new.command(epilog=f"Kinds: {', '.join(TEMPLATED_KINDS)}.")
@click.argument("kind")
@click.argument("name")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("."),
    show_default="this folder",
    help="Folder to put the package's folder into.",
)
def plugin(kind: str, name: str, output: Path) -> None:
    """Write a small working package.

    It holds a plugin NAME of KIND with its config file and a test.

    For example: tokenloom new plugin scheduler shortest_first
    """
    taken = [other for other in default_registry().plugins(kind) if other.info.name == name]
    if taken:
        raise ConfigError(f"{kind}={name} exists already, in package {taken[0].package}; choose another name")
    written = write_plugin_package(kind, name, output.expanduser())
    folder = written[0].parent
    for path in written:
        click.echo(f"wrote {path}")
    steps = [
        f"pip install -e '{folder}[dev]'",
        f"tokenloom explain {kind}={name}",
        f'tokenloom generate "The capital of France is" {usage(kind, name)}',
        f"pytest {folder}",
        f"tokenloom plugins check {kind}={name}",
    ]
    click.echo("\nNext:\n" + "\n".join(f"  {step}" for step in steps))
