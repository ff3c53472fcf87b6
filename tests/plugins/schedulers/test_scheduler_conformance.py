"""The built-in schedulers keep the contract; `max_wait_s` is what each one's docstring states, at its defaults.

In that test of the suite the longest gap in `priority` is 9 levels, and a step takes 1 s.
"""

from __future__ import annotations

from dataclasses import replace

from tokenloom.interfaces.contract import Capabilities
from tokenloom.plugins import default_registry
from tokenloom.testing import SchedulerSuite

IN_LINE_S = 15.0
"""A bound for whoever waits for those before it only: in the test, the occupant and itself."""


class TestFcfs(SchedulerSuite):
    """Order of arrival."""

    plugin = "fcfs"
    max_wait_s = IN_LINE_S


class TestFcfsInChunks(SchedulerSuite):
    """With prompts cut small, which leaves budget unused when few wait."""

    plugin = "fcfs"
    settings = {"max_chunk_tokens": 5}
    max_wait_s = IN_LINE_S


class TestPriority(SchedulerSuite):
    """Nine levels, ten seconds each."""

    plugin = "priority"
    max_wait_s = 9 * 10.0 + IN_LINE_S


class TestStrictPriority(SchedulerSuite):
    """Without ageing, the less urgent may wait for ever; whoever sets it so knows."""

    plugin = replace(
        default_registry().get("scheduler", "priority").info,
        capabilities=Capabilities(flags=frozenset({"unbounded_wait"})),
    )
    settings = {"ageing_s": None}


class TestSjf(SchedulerSuite):
    """After max_wait_s, order of arrival."""

    plugin = "sjf"
    max_wait_s = 60.0 + IN_LINE_S


class TestSjfWithLearnedOutputs(SchedulerSuite):
    """Predicted from what the tenants' requests yielded."""

    plugin = "sjf"
    settings = {"estimate": "tenant_mean", "max_wait_s": 10.0}
    max_wait_s = 10.0 + IN_LINE_S


class TestFairShare(SchedulerSuite):
    """A tenant's share comes round."""

    plugin = "fair_share"
    max_wait_s = IN_LINE_S


class TestDeadline(SchedulerSuite):
    """After max_wait_s, order of arrival."""

    plugin = "deadline"
    max_wait_s = 60.0 + IN_LINE_S


class TestPrefixAffinity(SchedulerSuite):
    """After max_wait_s, order of arrival."""

    plugin = "prefix_affinity"
    max_wait_s = 30.0 + IN_LINE_S


class TestPrefixAffinityInASmallWindow(SchedulerSuite):
    """Overtaken twice, a request goes first."""

    plugin = "prefix_affinity"
    settings = {"window": 2, "max_overtakes": 2, "max_wait_s": 1e9}
    max_wait_s = 2.0 + IN_LINE_S


class TestSloAdaptive(SchedulerSuite):
    """Steps take no time here, so the budgets grow; from the smallest there are."""

    plugin = "slo_adaptive"
    settings = {"initial_tokens": 1, "min_prefill_tokens": 1}
    max_wait_s = IN_LINE_S


class TestStaticBatch(SchedulerSuite):
    """Order of arrival, batch by batch."""

    plugin = "static_batch"
    max_wait_s = IN_LINE_S


class TestAllLimitsOnPrompts(SchedulerSuite):
    """What the schedulers share, all of it at once."""

    plugin = "fcfs"
    settings = {
        "max_chunk_tokens": 3,
        "max_prefill_tokens": 5,
        "max_num_partial_prefills": 2,
        "max_long_partial_prefills": 1,
        "long_prefill_token_threshold": 4,
    }
    max_wait_s = IN_LINE_S
