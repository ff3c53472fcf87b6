"""Options of the whole test suite."""

from __future__ import annotations

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
