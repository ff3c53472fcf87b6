"""How a command ends that ran several configurations, some of which failed."""

from __future__ import annotations

from collections.abc import Mapping

import click

__all__ = ["end_by_failures"]

_FAILED = 1


def end_by_failures(failures: Mapping[str, str]) -> None:
    """Says on stderr why each failed, by its name, and ends the command with 1; does nothing where none did."""
    for name, reason in failures.items():
        click.echo(f"failed: {name}: {reason}", err=True)
    if failures:
        raise click.exceptions.Exit(_FAILED)
