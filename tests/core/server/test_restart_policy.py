"""RestartPolicy."""

from __future__ import annotations

from tokenloom.server.restart_policy import RestartPolicy


def test_the_first_restart_comes_at_once_and_later_ones_after_doubling_pauses() -> None:
    policy = RestartPolicy(4, 1.5)
    assert [policy.pause_s(float(now)) for now in range(6)] == [0.0, 1.5, 3.0, 6.0, None, None]


def test_a_pause_never_exceeds_a_minute() -> None:
    policy = RestartPolicy(100, 40.0)
    pauses = [policy.pause_s(0.0) for _ in range(100)]
    assert pauses[2:] == [60.0] * 98


def test_without_restarts_the_first_death_is_the_last() -> None:
    assert RestartPolicy(0, 1.0).pause_s(5.0) is None


def test_a_process_that_worked_for_a_while_has_recovered() -> None:
    policy = RestartPolicy(2, 1.0)
    assert [policy.pause_s(0.0), policy.pause_s(1.0)] == [0.0, 1.0]
    policy.note_working(2.0)
    assert policy.pause_s(62.0) == 0.0
    assert policy.num_in_row == 1
    policy.note_working(63.0)
    assert policy.pause_s(70.0) == 1.0, "it died too soon"
