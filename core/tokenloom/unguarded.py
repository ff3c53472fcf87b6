"""Frozen dataclasses without the guard at run time: for those of which each step makes many."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

__all__ = ["unguarded"]

_T = TypeVar("_T")


def unguarded(cls: type[_T]) -> type[_T]:
    """Takes the guard off a `@dataclass(frozen=True, slots=True)`: its objects are made in a fifth of the time.

    With the guard, each field is set by `object.__setattr__`: a third of the Python part of a step. To type checkers
    the class is as frozen as before. Defaults are values, not factories.
    """
    scope: dict[str, Any] = {}
    parameters: list[str] = []
    for field in fields(cls):  # type: ignore[arg-type]
        assert field.default_factory is MISSING, f"{cls.__name__}.{field.name} has a factory"
        scope[f"default_{field.name}"] = field.default
        parameters.append(field.name if field.default is MISSING else f"{field.name}=default_{field.name}")
    lines = [f"    self.{field.name} = {field.name}" for field in fields(cls)]  # type: ignore[arg-type]
    exec("\n".join([f"def __init__(self, {', '.join(parameters)}):", *lines]), scope)
    scope["__init__"].__annotations__ = cls.__init__.__annotations__
    cls.__init__ = scope["__init__"]  # type: ignore[method-assign]
    del cls.__setattr__, cls.__delattr__
    return cls
