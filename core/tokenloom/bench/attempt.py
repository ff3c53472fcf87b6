"""A run that may fail without taking the results of others with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, final

from tokenloom.errors import TokenloomError

__all__ = ["Failure", "attempt"]

_Result = TypeVar("_Result")


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run gave no result."""

    reason: str


def attempt(run: Callable[[], _Result]) -> _Result | Failure:
    """What a run of one configuration gives, or why it failed. Ctrl-C is no failure, and passes."""
    try:
        return run()
    except TokenloomError as error:
        return Failure(str(error))
    except Exception as error:  # noqa: BLE001 - a plugin may fail in any way; the other results are worth more
        return Failure(f"{type(error).__name__}: {error}")
