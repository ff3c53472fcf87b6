"""What a class that derives from a suite may change: nothing that switches a demand of the contract off in silence.

In silence means that a report of pytest would not show it. So a test of the suite is overridden, by the class itself or
by a mixin, only with `xfail(reason=...)` on it; it is not replaced or deleted later; a class that names a plugin can be
collected; a mark that skips or excuses a whole class, which a report shows, says why; and an attribute whose name is
nearly that of one of the suite is taken for a slip.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from types import FunctionType
from typing import Any, final

__all__ = ["SuiteType", "check_suite"]

_FINAL = ("capabilities", "info")
_EXCUSES = frozenset({"skip", "skipif", "xfail"})
_NEAR = 0.8
"""Similarity from which a name counts as a slip: `setting` is 0.93 to `settings`, `max_wait` 0.89 to `max_wait_s`."""


@final
class SuiteType(type):
    """The class of suites: keeps to the rules after a class is made, when decorators and later code assign to it."""

    def __setattr__(cls, name: str, value: Any) -> None:
        if name.startswith("test_"):
            raise TypeError(f"{cls.__name__}.{name} is replaced after its class was made; {_HOW_TO_EXCUSE}")
        super().__setattr__(name, value)
        if name == "pytestmark":
            _check_marks(cls, value)
        if name == "__test__":
            _check_collected(cls)

    def __delattr__(cls, name: str) -> None:
        if name.startswith("test_"):
            raise TypeError(f"{cls.__name__}.{name} is deleted; {_HOW_TO_EXCUSE}")
        super().__delattr__(name)


_HOW_TO_EXCUSE = (
    "a test that cannot hold for a plugin is overridden in its class with @pytest.mark.xfail(reason='...') so that the "
    "reason is on record"
)


def check_suite(cls: type, base: type) -> None:
    """Checks a class that was just derived.

    Args:
        cls: a subclass of `base`.
        base: what all suites derive from.

    Raises:
        TypeError: it breaks a rule; the message names the attribute and what to do.
    """
    _check_tests(cls, base)
    _check_collected(cls)
    for owner in cls.__mro__:
        _check_marks(cls, vars(owner).get("pytestmark", []))
    for name in _FINAL:
        if next(owner for owner in cls.__mro__ if name in vars(owner)) is not base:
            raise TypeError(f"{cls.__name__} overrides `{name}`, which is what the plugin declares in its PluginInfo")
    _check_names(cls, base)


def _check_tests(cls: type, base: type) -> None:
    suites = [owner for owner in cls.__mro__ if issubclass(owner, base)]
    for name in dict.fromkeys(name for suite in suites for name in vars(suite) if name.startswith("test_")):
        owners = [owner for owner in cls.__mro__ if name in vars(owner)]
        test = vars(owners[0])[name]
        if any(owner in suites for owner in owners[1:]) and not (callable(test) and _has_reason(test)):
            by = "overrides" if owners[0] is cls else f"overrides by {owners[0].__name__}"
            raise TypeError(f"{cls.__name__} {by} {name} of its conformance suite; {_HOW_TO_EXCUSE}")
        if not getattr(test, "__test__", True):
            raise TypeError(f"{cls.__name__}: {name} has __test__ = False and would not be collected; {_HOW_TO_EXCUSE}")


def _check_collected(cls: type) -> None:
    """Shared bases that name no plugin may be hidden from pytest."""
    named = inspect.getattr_static(cls, "plugin", "")
    if named and not getattr(cls, "__test__", True):
        raise TypeError(f"{cls.__name__} names the plugin {named!r} and sets __test__ = False: no test of it would run")
    for name, plain in (("__init__", object.__init__), ("__new__", object.__new__)):
        if getattr(cls, name) is not plain:
            raise TypeError(f"{cls.__name__} has a {name}, and pytest collects no such class; use a fixture")


def _check_marks(cls: type, marks: Any) -> None:
    for mark in marks if isinstance(marks, Iterable) else [marks]:
        if mark.name in _EXCUSES and not _reason(mark):
            raise TypeError(f"{cls.__name__} is marked {mark.name} as a whole; give a reason, so that it is on record")


def _check_names(cls: type, base: type) -> None:
    known = {
        name
        for owner in cls.__mro__[1:]
        if issubclass(owner, base)
        for name, value in vars(owner).items()
        if _is_setting(name, value) or isinstance(value, property)
    }
    sources = [owner for owner in cls.__mro__ if owner is cls or not issubclass(owner, base)]
    for name in (name for owner in sources for name, value in vars(owner).items() if _is_setting(name, value)):
        near = difflib.get_close_matches(name, sorted(known), cutoff=_NEAR)
        if near and name not in known:
            meant = " or ".join(f"`{other}`" for other in near)
            raise TypeError(
                f"{cls.__name__} sets `{name}`, which its suite does not read; did you mean {meant}? "
                "Else choose a name that is less alike"
            )


def _is_setting(name: str, value: object) -> bool:
    """Whether a class attribute is a public one that holds plain data."""
    is_code = isinstance(value, FunctionType | classmethod | staticmethod | property | type)
    return not name.startswith(("_", "test_", "pytest")) and not is_code


def _has_reason(test: object) -> bool:
    return any(mark.name == "xfail" and _reason(mark) for mark in getattr(test, "pytestmark", []))


def _reason(mark: Any) -> object:
    """The reason of a mark, which `skip` takes as its argument too; a bare `pytest.mark.skip` has none."""
    return mark.kwargs.get("reason") or (mark.name == "skip" and mark.args and mark.args[0])
