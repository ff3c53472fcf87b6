"""check_plan: every kind of illegal plan is refused, naming plugin and rule; legal ones pass."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tokenloom.batch import Preemption, PreemptMode, SchedulePlan
from tokenloom.errors import PluginContractError
from tokenloom.scheduling import check_plan
from tokenloom.testing.desk import Desk


def crowded_desk() -> Desk:
    """Two running requests that hold 5 of 6 blocks, two waiting ones; three slots, eight tokens a step."""
    desk = Desk((7,), max_num_seqs=3, budget=8)
    desk.run("a", range(9))
    desk.run("b", range(20, 30), num_drafts=2)
    desk.wait("c", range(40, 43))
    desk.wait("d", range(60, 75))
    return desk


def check(desk: Desk, plan: SchedulePlan, num_inflight: int = 0) -> None:
    check_plan(plan, desk.view(), desk.ledger, "scheduler=bad", num_inflight=num_inflight)


@pytest.mark.parametrize(
    ("tokens", "victims"),
    [
        ({"a": 1}, ()),
        ({"a": 1, "b": 3}, ()),
        ({"b": 3, "c": 3}, ()),
        ({"c": 2}, ()),
        ({"a": 1}, (Preemption("b"),)),
        ({"b": 1, "d": 7}, (Preemption("a"),)),
        ({"c": 3, "d": 5}, (Preemption("a"), Preemption("b"))),
    ],
)
def test_legal_plan_passes(tokens: Mapping[str, int], victims: tuple[Preemption, ...]) -> None:
    check(crowded_desk(), SchedulePlan(tokens, victims))


@pytest.mark.parametrize(
    ("tokens", "victims", "rule", "detail"),
    [
        ({"a": 1, "x": 1}, (), "names requests of its view", "'x'"),
        ({"a": 1}, (Preemption("x"),), "names requests of its view", "'x'"),
        ({"a": 0}, (), "legal", "0 tokens"),
        ({"a": -1}, (), "legal", "-1 tokens"),
        ({"a": 2}, (), "legal", "allowed is 1..1"),
        ({"b": 4}, (), "legal", "allowed is 1..3"),
        ({"a": 0.5}, (), "legal", "0.5 tokens"),
        ({"a": 1, "d": 8}, (Preemption("b"),), "fits the tokens", "lacks 1 tokens"),
        ({"c": 1, "d": 1}, (), "fits the slots", "lacks 1 slots"),
        ({"a": 1, "d": 5}, (), "fits the blocks", "lacks 2 blocks"),
        ({"a": 1}, (Preemption("c"),), "legal", "cannot be preempted"),
        ({"b": 1}, (Preemption("a"), Preemption("a")), "legal", "cannot be preempted"),
        ({"a": 1}, (Preemption("a"),), "legal", "preempted in this step already"),
        ({"a": 1}, (Preemption("b", PreemptMode.SWAP),), "legal", "not supported"),
        ({"a": 1}, (Preemption("b", keep_blocks=-1),), "legal", "not supported"),
        ({}, (), "makes progress", "2 running and 2 waiting"),
        ({}, (Preemption("a"),), "makes progress", "no token"),
    ],
)
def test_illegal_plan_is_refused_naming_plugin_and_rule(
    tokens: Mapping[str, int], victims: tuple[Preemption, ...], rule: str, detail: str
) -> None:
    desk = crowded_desk()
    before = desk.kv.usage()
    with pytest.raises(PluginContractError) as caught:
        check(desk, SchedulePlan(tokens, victims))
    assert caught.value.plugin == "scheduler=bad"
    assert rule in caught.value.rule
    assert all(part in str(caught.value) for part in ("scheduler=bad", caught.value.rule, detail))
    assert desk.kv.usage() == before


def test_empty_plan_is_legal_while_a_step_is_in_flight_or_nothing_is_left() -> None:
    check(crowded_desk(), SchedulePlan(), num_inflight=1)
    check(Desk(), SchedulePlan())
