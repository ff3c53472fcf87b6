"""`tokenloom plugins check`: the conformance suites, run on what a package declares."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence

import click

from tokenloom.cli.console import print_table
from tokenloom.errors import ConfigError
from tokenloom.plugins import default_registry
from tokenloom.testing.check import Checked, check_plugins, parse_settings, select_plugins
from tokenloom.testing.outcome import Failure

__all__ = ["check"]

_MOST_LINES = 40
"""Of one message; a failing random test may print much."""

_SETTINGS_HELP = (
    "A setting that differs from the plugin's default, written as in a config but without the kind: "
    "max_chunk_tokens=64, or victim=last_in for a nested plugin. Give the option once for each setting. It needs "
    "PACKAGE to be one plugin, as kind=name."
)


@click.command()
@click.argument("package")
@click.option("--settings", multiple=True, metavar="KEY=VALUE", help=_SETTINGS_HELP)
def check(package: str, settings: tuple[str, ...]) -> int:
    """Run the conformance suites on plugins.

    PACKAGE is a distribution or an import package, for all its plugins, or one plugin as kind=name.

    For example: tokenloom plugins check scheduler=fcfs --settings max_chunk_tokens=64

    The exit code is 1 if a test failed, 2 if nothing of that name is installed, else 0.
    """
    registry = default_registry()
    plugins = select_plugins(registry, package)
    if settings and len(plugins) > 1:
        raise ConfigError(f"--settings is for one plugin, {package} has {len(plugins)}; name one as kind=name")
    values = parse_settings(plugins[0], settings, registry) if settings else {}
    checked = check_plugins(plugins, values, _show_progress if sys.stderr.isatty() else _show_nothing)
    columns = ("plugin", "package", "passed", "skipped", "failed", "")
    print_table(columns, [_row(result) for result in checked])
    skipped = [(result.plugin.label, str(n), why) for result in checked for why, n in result.outcome.skipped.items()]
    if skipped:
        print_table(("plugin", "skipped", "why"), skipped)
    for result in checked:
        for failures in _by_message(result.outcome.failures):
            click.echo(_describe(result.plugin.label, failures))
    return 1 if any(result.outcome.failures for result in checked) else 0


def _show_progress(plugin: str, num_done: int, num_tests: int) -> None:
    """One line that is written over, and wiped out at the end."""
    # Written when a test has ended: a bar that redraws by itself would be captured by pytest.
    line = f"{plugin} {num_done}/{num_tests}" if num_done < num_tests else ""
    click.echo(f"\r\x1b[2K{line}", err=True, nl=False)


def _show_nothing(_plugin: str, _num_done: int, _num_tests: int) -> None:
    """For stderr that is no terminal."""


def _row(result: Checked) -> tuple[str, ...]:
    plugin, outcome = result.plugin, result.outcome
    counts = (outcome.num_passed, sum(outcome.skipped.values()), len(outcome.failures))
    shown = ("", "", "") if result.note else tuple(str(count) for count in counts)
    return (plugin.label, f"{plugin.package} {plugin.version}", *shown, result.note)


def _by_message(failures: Iterable[Failure]) -> Iterable[list[Failure]]:
    """Failures that say the same together: a plugin that cannot be built fails all tests for one reason."""
    groups: dict[str, list[Failure]] = {}
    for failure in failures:
        # What hypothesis adds names the test, which is told anyway.
        groups.setdefault(failure.message.partition("\nFailing test case:")[0], []).append(failure)
    return groups.values()


def _describe(label: str, failures: Sequence[Failure]) -> str:
    first, *others = failures
    lines = first.message.splitlines()
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"... {len(lines) - _MOST_LINES} more lines"]
    parts = [f"FAILED {label} {first.test}{f', and {len(others)} more with the same message' if others else ''}"]
    parts += [textwrap.indent(first.meaning, "  ")] if first.meaning else []
    parts.append(textwrap.indent("\n".join(lines), "    "))
    if others:
        names = f"The same in {', '.join(failure.test for failure in others)}."
        parts.append(textwrap.fill(names, 120, initial_indent="  ", subsequent_indent="  ", break_long_words=False))
    return "\n".join([*parts, ""])
