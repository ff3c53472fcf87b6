"""How the kit's random tests run: the same examples in every run, kept in no folder, without a time limit for each."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

__all__ = ["RANDOM"]

RANDOM = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    # Without the phase that explains: it runs a failing example many times more.
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    # A suite's test is one function that runs in the class of each plugin.
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
