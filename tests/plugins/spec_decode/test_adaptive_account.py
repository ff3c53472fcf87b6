"""The account of drafting: closed where it loses time, for longer each time; open where it does not."""

from __future__ import annotations

import random

from tokenloom_spec_decode.adaptive_account import DraftAccount


def steps_until_closed(account: DraftAccount, gained: float, spent: float, most: int = 500, num_rows: int = 64) -> int:
    for step in range(most):
        if not account.is_open:
            return step
        account.book(gained, spent, num_rows)
    return most


def steps_until_open(account: DraftAccount) -> int:
    count = 0
    while not account.is_open:
        account.pass_by()
        count += 1
    return count


def test_it_closes_soon_where_steps_lose_time_and_longer_each_time() -> None:
    account = DraftAccount()
    pauses = []
    for _ in range(7):
        assert steps_until_closed(account, 0.1, 0.15) == 12
        pauses.append(steps_until_open(account))
    assert pauses == [32, 64, 128, 256, 512, 1024, 1024]


def test_it_stays_open_where_steps_gain() -> None:
    assert steps_until_closed(DraftAccount(), 0.5, 0.1) == 500


def test_one_request_is_given_more_time_than_many() -> None:
    assert steps_until_closed(DraftAccount(), 0.0, 0.1, num_rows=1) > 20
    assert steps_until_closed(DraftAccount(), 0.0, 0.1, num_rows=8) == 12


def test_what_pays_for_long_shortens_the_next_pause() -> None:
    account = DraftAccount()
    for _ in range(3):
        steps_until_closed(account, 0.0, 0.1)
        steps_until_open(account)
    steps_until_closed(account, 0.5, 0.1, most=100)
    steps_until_closed(account, 0.0, 0.3)
    assert steps_until_open(account) == 32


def test_chance_seldom_closes_it() -> None:
    """One request: most steps accept nothing, some several; on average a fifth of a token more than they cost."""
    closed = 0
    for seed in range(40):
        draw, account = random.Random(seed), DraftAccount()
        for _ in range(100):
            account.book(draw.choice([0.0, 0.0, 0.0, 1.2]), 0.1, 1)
        closed += not account.is_open
    assert closed <= 2


def test_nothing_is_booked_while_it_is_closed() -> None:
    account = DraftAccount()
    steps_until_closed(account, 0.0, 0.1)
    for _ in range(100):
        account.book(5.0, 0.0, 64)
    assert not account.is_open
