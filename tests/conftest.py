"""Options of the whole test suite, its order, and what the garbage collector sees of it."""

from __future__ import annotations

import gc
import os

import pytest

# Triton reads it once, when it is imported: its kernels then run on the CPU. Tests that compile some start a process.
os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full-matrix",
        action="store_true",
        help="Run every combination of plugins and settings instead of a covering array.",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: at the end, workers that have nothing left wait for the longest file."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Hides the tests and all modules from the garbage collector, which every engine and every simulation makes walk
    through all of them when it begins. They also freeze what is there for good; here, thousands come and go."""
    gc.collect()
    gc.freeze()
    gc.freeze = gc.unfreeze = _leave_as_it_is


def _leave_as_it_is() -> None:
    pass
