"""The judgement of `make soak`, which CI runs behind the tests, when the machine is quiet."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module; it imports its neighbour by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    sys.modules.pop("serving_soak", None)
    import serving_soak

    return serving_soak


def overload(*, num_refused: int = 100, refused_s: float | None = 0.02, num_failed: int = 0) -> dict[str, Any]:
    return {"num_refused": num_refused, "refused_after_s": {"p99": refused_s}, "num_failed": num_failed}


@pytest.mark.parametrize(
    ("changes", "goodput", "spread", "failing"),
    [
        ({}, 0.9, 0.05, []),
        ({}, 0.89, 0.0, ["goodput holds"]),
        ({}, 1.2, 0.051, ["memory is flat"]),
        ({"num_failed": 1}, 1.0, 0.0, ["nothing fails"]),
        ({"refused_s": 0.6}, 1.0, 0.0, ["the rest is refused at once"]),
        # Then it was no overload, and nothing is shown.
        ({"num_refused": 0, "refused_s": None}, 1.0, 0.0, ["the rest is refused at once"]),
    ],
)
def test_a_soak_fails_by_each_of_its_checks(
    soak: Any, changes: dict[str, Any], goodput: float, spread: float, failing: list[str]
) -> None:
    found = soak.checks(overload(**changes), goodput, spread)
    assert [name for name, holds in found.items() if not holds] == failing


def test_memory_may_grow_while_the_server_settles_and_not_later(soak: Any) -> None:
    settling = [100, 180, *[200] * 8]
    assert soak.Memory(rss_bytes=settling).spread() == 0.0
    assert soak.Memory(rss_bytes=[*settling[:9], 220]).spread() == pytest.approx(0.1)


@pytest.mark.parametrize(("outcomes", "code"), [([True], 0), ([False, True], 0), ([False, False], 1)])
def test_one_attempt_has_to_hold(soak: Any, monkeypatch: pytest.MonkeyPatch, outcomes: list[bool], code: int) -> None:
    numbers: list[int] = []

    def attempt(args: argparse.Namespace, number: int) -> bool:
        numbers.append(number)
        return outcomes[number - 1]

    monkeypatch.setattr(soak, "attempt", attempt)
    monkeypatch.setattr(sys, "argv", ["serving_soak.py", "--seconds", "1", "--attempts", "2"])
    assert soak.main() == code
    assert numbers == list(range(1, len(outcomes) + 1))


def test_ci_soaks_a_server_for_a_minute_behind_the_tests() -> None:
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert steps.index("make soak") > steps.index("make test")
    (command,) = [
        line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if "serving_soak.py" in line
    ]
    assert "--seconds 60" in command
