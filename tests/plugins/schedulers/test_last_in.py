"""last_in: whoever was admitted last gives its memory back, the requester included."""

from __future__ import annotations

from tokenloom.testing.desk import Desk
from tokenloom_schedulers.last_in import LastIn, LastInConfig


def test_last_candidate_is_chosen() -> None:
    desk = Desk()
    a, b, c = (desk.run(name, range(4)) for name in "abc")
    policy = LastInConfig().build(desk.limits)
    assert isinstance(policy, LastIn)
    assert policy.select(a, [a, b, c], desk.view()) is c
    assert policy.select(c, [a, b, c], desk.view()) is c
    assert policy.select(a, [a, b], desk.view()) is b
    assert policy.select(a, [], desk.view()) is None


def test_choice_does_not_depend_on_size_or_priority() -> None:
    desk = Desk((33,))
    big, small = desk.run("big", range(40)), desk.run("small", [1, 2])
    small.priority = -5
    assert LastIn().select(big, [big, small], desk.view()) is small
    assert LastIn().select(big, [small, big], desk.view()) is big
