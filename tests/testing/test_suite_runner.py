"""The runner that tests of the kit rest on sees what pytest would see."""

from __future__ import annotations

import pytest

from tests.testing.suite_runner import FAILED, PASSED, SKIPPED, failed_tests, make_suite, run_test, test_names
from tokenloom.testing import PluginSuite


class ExampleSuite(PluginSuite):
    limit = 100

    def test_that_passes(self) -> None:
        pass

    def test_that_skips(self) -> None:
        pytest.skip("no reason to run")

    @pytest.mark.parametrize("x", [1, pytest.param(2, id="two")])
    @pytest.mark.parametrize(("y", "z"), [(10, 20), (30, 40)])
    def test_of_the_sum(self, x: int, y: int, z: int) -> None:
        if x == 1 and y == 10:
            pytest.skip("only some cases")
        assert x + y + z < self.limit, f"{x} + {y} + {z}"

    def test_that_crashes(self) -> None:
        if self.limit < 50:
            raise KeyError("crash")

    def helper(self) -> None:
        raise AssertionError("no test")


def test_run_test_tells_passed_skipped_and_failed_apart() -> None:
    suite = make_suite(ExampleSuite, "anything")
    assert run_test(suite, "test_that_passes") == (PASSED, "")
    assert run_test(suite, "test_that_skips") == (SKIPPED, "no reason to run")
    assert run_test(suite, "test_of_the_sum")[0] == PASSED


def test_run_test_runs_every_case() -> None:
    outcome, message = run_test(make_suite(ExampleSuite, "anything", limit=72), "test_of_the_sum")
    assert outcome == FAILED
    assert "2 + 30 + 40" in message


def test_failed_tests_counts_crashes_and_tests_only() -> None:
    assert test_names(ExampleSuite) == ["test_of_the_sum", "test_that_crashes", "test_that_passes", "test_that_skips"]
    assert failed_tests(ExampleSuite) == {}
    found = failed_tests(make_suite(ExampleSuite, "anything", limit=0))
    assert sorted(found) == ["test_of_the_sum", "test_that_crashes"]
    assert "KeyError: 'crash'" in found["test_that_crashes"]
