"""docs/known_faults.md: every test that it names exists, and every fault has one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import tokenloom.testing

ROOT = Path(__file__).resolve().parent.parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "known_faults.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| fault")
]


def names_of_tests(folder: Path) -> set[str]:
    """Names of all test functions, in classes too, of modules that pytest collects."""
    return {
        node.name
        for path in folder.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_fault_names_its_report_and_tests_that_exist() -> None:
    known = names_of_tests(ROOT / "tests")
    assert len(ROWS) > 20
    for fault, report, held_by in ROWS:
        names = re.findall(r"`([\w.]+)`", held_by)
        assert names, f"nothing holds off: {fault}"
        assert re.search(r"#\d+|GHSA-|design rule", report), f"{fault}: no report in {report!r}"
        for name in names:
            suite, _, test = name.rpartition(".")
            if suite:
                assert callable(getattr(getattr(tokenloom.testing, suite), test, None)), f"{fault}: no {name}"
            else:
                assert name in known, f"{fault}: no test is called {name}"
