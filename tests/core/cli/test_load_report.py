"""How a load is reported while it runs."""

from __future__ import annotations

import sys

import pytest

from tokenloom.cli.load_report import load_report, status_text
from tokenloom.load_generator.load_run import LoadStatus
from tokenloom.load_generator.measure import LoadTest
from tokenloom.load_generator.traffic import Traffic
from tokenloom.load_generator.workloads import GeneratedWorkload
from tokenloom.simulation.load_generation import LoadShape
from tokenloom.simulation.measurements import SloTargets
from tokenloom.simulation.request_mix import RequestMix


def status(elapsed_s: float) -> LoadStatus:
    return LoadStatus(elapsed_s, 20, 9, 4, 3, 500, 0.25)


def test_a_line_tells_what_happened() -> None:
    assert status_text(status(5.0)) == "4 running, 9 completed, 4 refused, 3 failed, 100 tokens/s, TTFT 250 ms"
    assert status_text(LoadStatus(1.0, 1, 0, 0, 0, 0, None)) == "1 running, 0 completed, 0 tokens/s"


@pytest.mark.parametrize("duration_s", [None, 30.0])
def test_a_terminal_gets_a_bar(
    duration_s: float | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = GeneratedWorkload(LoadShape(), RequestMix(), 40)
    test = LoadTest(workload, Traffic("closed", 4, duration_s), 0.0, True, SloTargets(2.0, 0.1), 1000)
    with load_report("load", test) as report:
        report(status(5.0))
        report(status(12.0))
        report(status(15.0))
        report(status(25.0))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": 4 running")[0] for line in lines] == ["load: 12 s", "load: 25 s"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "160")
    with load_report("load", test) as report:
        report(status(12.0))
    assert ("12/30" if duration_s else "16/40") in capsys.readouterr().err
