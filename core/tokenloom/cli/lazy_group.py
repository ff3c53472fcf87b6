"""A click group that imports a command's module only when that command is called, not to list it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

import click

from tokenloom.errors import did_you_mean

__all__ = ["LazyCommand", "LazyGroup", "load_target"]


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command lives.

    Attributes:
        target: "module:attribute" of a click command.
        summary: its line in `tokenloom -h`.
        schema: "module:Class" of the pydantic schema of the command's own keys, for `tokenloom explain`; None if it has
            none.
    """

    target: str
    summary: str
    schema: str | None = None


def load_target(target: str) -> Any:
    """Imports "module:attribute"."""
    module, _, attribute = target.partition(":")
    return vars(import_module(module))[attribute]


@final
class LazyGroup(click.Group):
    """A group whose commands are named by a table.

    Args:
        table: the commands.
        default: the one that is meant where the first word names none; None refuses such a word.
        settings: of the click group.
    """

    def __init__(self, table: Mapping[str, LazyCommand], *, default: str | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._table = table
        self._default = default

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = self._table.get(cmd_name)
        if entry is None:
            return None
        command = load_target(entry.target)
        assert isinstance(command, click.Command), f"{entry.target} is no click command"
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names_none = bool(args) and args[0] not in self._table and args[0] not in ctx.help_option_names
        return super().parse_args(ctx, [self._default, *args] if names_none and self._default is not None else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._table and not args[0].startswith("-"):
            near = did_you_mean(args[0], self._table)
            raise click.UsageError(f"no such command {args[0]!r}.{near} Commands: {', '.join(self._table)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self._table.items()])
