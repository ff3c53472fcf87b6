"""Places that front ends share."""

from __future__ import annotations

import threading

import pytest

from tokenloom.errors import OverloadedError
from tokenloom.server.places import Places


def test_places_are_counted_over_all_front_ends() -> None:
    counts = [0, 0]
    first, second = Places(counts, 0), Places(counts, 1)
    held = first.reserve(3, 5)
    with pytest.raises(OverloadedError, match="3 choices of at most 5"):
        second.reserve(3, 5)
    assert counts == [3, 0]
    second.reserve(2, 5)
    assert counts == [3, 2]
    held.release()
    assert counts == [0, 2]


def test_places_are_given_back_once() -> None:
    counts = [0]
    held = Places(counts).reserve(3, None)
    held.release(1)
    assert counts == [2]
    held.release()
    held.release()
    held.release(1)
    assert counts == [0]


def test_without_a_limit_all_are_taken() -> None:
    counts = [0]
    Places(counts).reserve(10**6, None)
    assert counts == [10**6]


def test_a_new_front_end_forgets_what_its_predecessor_held() -> None:
    counts = [7, 2]
    Places(counts, 0)
    assert counts == [0, 2]


def test_several_at_once_never_take_more_than_there_is() -> None:
    counts = [0] * 4
    most = 0

    def take(own: int) -> None:
        nonlocal most
        places = Places(counts, own)
        for _ in range(2000):
            try:
                held = places.reserve(1, 2)
            except OverloadedError:
                continue
            with lock:
                holders.add(own)
                most = max(most, len(holders))
            with lock:
                holders.discard(own)
            held.release()

    lock, holders = threading.Lock(), set[int]()
    threads = [threading.Thread(target=take, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most <= 2
    assert counts == [0] * 4
