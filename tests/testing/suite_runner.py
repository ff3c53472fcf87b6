"""Runs tests of a conformance suite without pytest's collection, to see which of them a plugin fails.

Import it as `from tests.testing.suite_runner import make_suite, run_test`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import pytest

from tokenloom.interfaces.contract import PluginInfo
from tokenloom.testing import PluginSuite

__all__ = ["FAILED", "PASSED", "SKIPPED", "failed_tests", "make_suite", "run_test", "test_names"]

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"

_Suite = TypeVar("_Suite", bound=PluginSuite)


def make_suite(suite: type[_Suite], plugin: PluginInfo | str, **attributes: Any) -> type[_Suite]:
    """What an author writes: a class derived from the suite that names the plugin."""
    return type(f"Test{suite.__name__}", (suite,), {"plugin": plugin, **attributes})


def test_names(suite: type[PluginSuite]) -> list[str]:
    """The tests of a suite, inherited ones included, sorted."""
    return sorted(name for name in dir(suite) if name.startswith("test_"))


test_names.__test__ = False  # type: ignore[attr-defined]


def run_test(suite: type[PluginSuite], name: str) -> tuple[str, str]:
    """Runs one test in all its parametrisations, up to the first failure.

    Returns:
        (outcome, message): failed if any case failed, skipped if all were, else passed.
    """
    outcomes: list[str] = []
    message = ""
    for arguments in _cases(getattr(suite, name)):
        try:
            getattr(suite(), name)(**arguments)
        except pytest.skip.Exception as skip:
            outcomes.append(SKIPPED)
            message = str(skip)
        except Exception as error:  # noqa: BLE001  (whatever a broken plugin raises is a failure of the test)
            return FAILED, f"{arguments}: {type(error).__name__}: {error}"
        else:
            outcomes.append(PASSED)
    return (SKIPPED if PASSED not in outcomes else PASSED), message


def failed_tests(suite: type[PluginSuite]) -> dict[str, str]:
    """Runs the whole suite: name -> message of each test that fails."""
    outcomes = {name: run_test(suite, name) for name in test_names(suite)}
    return {name: message for name, (outcome, message) in outcomes.items() if outcome == FAILED}


def _cases(test: Any) -> Iterator[Mapping[str, Any]]:
    """The keyword arguments of each parametrisation, as pytest would make them."""
    axes: list[list[dict[str, Any]]] = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names, values = mark.args[:2]
        keys = [key.strip() for key in names.split(",")] if isinstance(names, str) else list(names)
        axes.append([dict(zip(keys, _values(row, len(keys)), strict=True)) for row in values])
    for combination in itertools.product(*axes):
        yield {key: value for part in combination for key, value in part.items()}


def _values(row: Any, count: int) -> tuple[Any, ...]:
    """One row of a parametrisation as a tuple, `pytest.param` or not."""
    if isinstance(row, type(pytest.param())):
        return tuple(row.values)
    return (row,) if count == 1 else tuple(row)
