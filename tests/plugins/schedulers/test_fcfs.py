"""fcfs: order of arrival, no overtaking, chunks as large as the budget allows."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

import tokenloom_schedulers
from tokenloom.batch import SchedulePlan
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.plugins import Registry
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import EngineHarness, build_fcfs
from tokenloom_schedulers.fcfs import FcfsConfig
from tokenloom_schedulers.last_in import LastInConfig
from tokenloom_schedulers.optimistic import OptimisticConfig

VICTIM = PluginChoice("scheduler.victim", "last_in", LastInConfig())
ADMISSION = PluginChoice("scheduler.admission", "optimistic", OptimisticConfig())


def plan_of(desk: Desk, max_chunk_tokens: int | None = None) -> SchedulePlan:
    return build_fcfs(desk.limits, max_chunk_tokens).schedule(desk.view(), desk.ledger())


@pytest.mark.parametrize("name", ["max_chunk_tokens", "max_num_seqs", "max_num_batched_tokens"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_config_refuses_limits_that_are_no_counts(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        FcfsConfig(victim=VICTIM, admission=ADMISSION, **{name: value})  # type: ignore[arg-type]


def test_package_declares_its_plugins() -> None:
    registry = Registry.from_modules([tokenloom_schedulers])
    schedulers = (
        "deadline",
        "fair_share",
        "fcfs",
        "prefix_affinity",
        "priority",
        "sjf",
        "slo_adaptive",
        "static_batch",
    )
    assert registry.names("scheduler") == schedulers
    assert registry.names("scheduler.victim") == ("last_in", "least_recompute", "lowest_priority", "most_blocks")
    assert registry.names("scheduler.admission") == ("optimistic", "peak_memory", "reserve_all")
    for plugin in registry.plugins():
        config_class = registry.load_config_class(plugin.info.kind, plugin.info.name)
        assert config_class.__name__ == "".join(map(str.capitalize, plugin.info.name.split("_"))) + "Config"
    parts = {"scheduler.victim": "last_in", "scheduler.admission": "optimistic"}
    assert registry.get("scheduler", "fcfs").info.sub_kinds == parts
    parts = {"scheduler.victim": "lowest_priority", "scheduler.admission": "optimistic"}
    assert registry.get("scheduler", "priority").info.sub_kinds == parts


def test_running_requests_come_first_and_prompts_fill_the_rest_of_the_budget() -> None:
    desk = Desk(budget=16)
    desk.wait("w1", range(40, 50))
    desk.wait("w2", range(60, 70))
    desk.run("r", range(9), num_drafts=3)
    assert list(plan_of(desk).num_scheduled_tokens.items()) == [("r", 4), ("w1", 10), ("w2", 2)]


def test_chunk_limit_leaves_budget_for_others() -> None:
    desk = Desk(budget=16)
    desk.wait("w1", range(40, 60))
    desk.wait("w2", range(60, 80))
    assert plan_of(desk, 5).num_scheduled_tokens == {"w1": 5, "w2": 5}
    assert plan_of(desk, 100).num_scheduled_tokens == {"w1": 16}


def test_chunk_limit_is_for_prompts_and_leaves_drafts_alone() -> None:
    desk = Desk(budget=16)
    desk.run("r", range(9), num_drafts=5)
    assert plan_of(desk, 2).num_scheduled_tokens == {"r": 6}


def test_request_that_does_not_fit_is_not_overtaken_by_a_smaller_one() -> None:
    desk = Desk((5,), budget=64, cache="none")
    desk.run("r", range(9))
    desk.wait("big", range(20, 29))
    desk.wait("small", [1])
    assert plan_of(desk).num_scheduled_tokens == {"r": 1}


def test_preempted_request_comes_back_before_those_that_arrived_later() -> None:
    harness = EngineHarness(num_blocks=(6,), max_num_seqs=2)
    names = ("a", "b", "c")
    harness.run(*[harness.request(name, range(20 * i, 20 * i + 7), 10) for i, name in enumerate(names)])
    harness.check_truth()
    assert harness.requests["b"].num_preemptions > 0
    first_rows = [row.request_id for plan in harness.executor.plans for row in plan.rows if row.new]
    assert first_rows.index("c") > max(i for i, name in enumerate(first_rows) if name == "b")
