"""What every command that composes a configuration takes: override words and --config-dir."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = ["config_dir_option", "overrides_argument", "split_words"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_OVERRIDE_WORD = re.compile(r"(?:~|\+{1,2})?[A-Za-z_][\w./@-]*=.*", re.DOTALL)


def overrides_argument(function: _Function) -> _Function:
    """Adds the argument `overrides`: any number of words such as scheduler=fcfs."""
    return click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")(function)


def config_dir_option(function: _Function) -> _Function:
    """Adds the option --config-dir, as parameter `config_dir: Path | None`."""
    return click.option(
        "--config-dir",
        type=click.Path(path_type=Path),
        help="Folder with config groups of your own, such as scheduler/mine.yaml or experiment/mine.yaml.",
    )(function)


def split_words(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Splits words into (texts, overrides): a word of the form key=value is an override, any other is text."""
    texts: list[str] = []
    overrides: list[str] = []
    for word in words:
        (overrides if _OVERRIDE_WORD.fullmatch(word) else texts).append(word)
    return texts, overrides
