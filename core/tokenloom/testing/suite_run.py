"""Runs one suite class with pytest in this process, apart from the settings of whatever project lies around."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import getdoc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from tokenloom.testing.outcome import Failure, Progress, SuiteOutcome
from tokenloom.testing.suite import PluginSuite

__all__ = ["chosen_suite", "run_suite"]

_CRASHED = "the kit could not run the suite"
_COLLECTED = "tokenloom.testing.suite_collection"
_chosen: list[type[PluginSuite]] = []


def chosen_suite() -> type[PluginSuite]:
    """The suite that is about to run, for the module that pytest collects."""
    return _chosen[-1]


def run_suite(suite: type[PluginSuite], label: str, progress: Progress) -> SuiteOutcome:
    """Runs every test of a suite class, `label` naming its plugin to `progress`."""
    recorder = _Recorder(label, progress)
    _chosen[:] = [suite]
    sys.modules.pop(_COLLECTED, None)
    options = ["-p", "no:cacheprovider", "-p", "no:terminal", "--import-mode=importlib", "-W", "ignore"]
    with TemporaryDirectory() as folder, _plain_environment():
        # A config file of its own: the folder in which the command runs may hold a project with other ideas.
        set_hypothesis_home_dir(folder)
        config = Path(folder) / "pytest.ini"
        config.write_text("[pytest]\n", encoding="utf-8")
        arguments = [*options, "-c", str(config), f"--rootdir={folder}", f"--basetemp={folder}/tmp"]
        module = Path(__file__).with_name(f"{_COLLECTED.rpartition('.')[2]}.py")
        code = pytest.main([*arguments, str(module)], plugins=[recorder])
        set_hypothesis_home_dir(None)
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not recorder.failures:
        recorder.failures.append(Failure(_CRASHED, "", f"pytest ended with {code!r}"))
    return SuiteOutcome(recorder.num_passed, recorder.skipped, tuple(recorder.failures))


@contextmanager
def _plain_environment() -> Iterator[None]:
    """Without pytest plugins and options of the user's own."""
    changes = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@final
class _Recorder:
    """A pytest plugin that counts outcomes."""

    def __init__(self, label: str, progress: Progress) -> None:
        self._label = label
        self._progress = progress
        self._meanings: dict[str, str] = {}
        self._num_done = 0
        self.num_passed = 0
        self.skipped: dict[str, int] = {}
        self.failures: list[Failure] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            test = item.function if isinstance(item, pytest.Function) else None
            self._meanings[item.nodeid] = getdoc(test) or ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failures.append(Failure(_CRASHED, "", report.longreprtext))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            reason = reason.removeprefix("Skipped: ")
            self.skipped[reason] = self.skipped.get(reason, 0) + 1
        elif report.failed:
            name = report.nodeid.rpartition("::")[2]
            self.failures.append(Failure(name, self._meanings.get(report.nodeid, ""), _message(report)))
        elif report.when == "call":
            self.num_passed += 1
        if report.when == "teardown":
            self._num_done += 1
            self._progress(self._label, self._num_done, len(self._meanings))


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return report.longreprtext if crash is None else str(crash.message)
