"""Calls into plugins with a name on them: what a plugin raises reaches the user as its breach of contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tokenloom.errors import PluginContractError, TokenloomError

__all__ = ["plugin_call"]


@contextmanager
def plugin_call(plugin: str, rule: str) -> Iterator[None]:
    """Turns an exception of a plugin into a PluginContractError.

    Args:
        plugin: as the user chose it, e.g. "scheduler=fcfs".
        rule: what a call of this kind has to do, e.g. "observe() takes every event".
    """
    try:
        yield
    except TokenloomError:
        raise
    except Exception as error:
        raise PluginContractError(plugin, rule, f"{type(error).__name__}: {error}") from error
