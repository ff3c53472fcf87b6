"""Calls into plugins with a name on them: what a plugin raises reaches the user as its breach of contract."""

from __future__ import annotations

from types import TracebackType
from typing import final

from tokenloom.errors import PluginContractError, TokenloomError

__all__ = ["plugin_call"]


@final
class plugin_call:  # noqa: N801 - it reads as what is done: with plugin_call(...)
    """Turns an exception of a plugin into a PluginContractError. A class, since steps make hundreds of such calls."""

    __slots__ = ("_plugin", "_rule")

    def __init__(self, plugin: str, rule: str) -> None:
        """Both are for the message.

        Args:
            plugin: as the user chose it, e.g. "scheduler=fcfs".
            rule: what a call of this kind has to do, e.g. "observe() takes every event".
        """
        self._plugin = plugin
        self._rule = rule

    def __enter__(self) -> None:
        """Nothing to do before the call."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, TokenloomError):
            raise PluginContractError(self._plugin, self._rule, f"{type(error).__name__}: {error}") from error
