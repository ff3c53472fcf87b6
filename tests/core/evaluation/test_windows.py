"""Windows of a text: each token counts once, where it has context."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.evaluation.windows import WindowPlan, cut_windows


def scored(size: int, stride: int, num_tokens: int, limit: int | None = None) -> list[int]:
    """Places in the text of the tokens that count, window by window."""
    windows = cut_windows(range(100, 100 + num_tokens), WindowPlan(size, stride, limit))
    for window in windows:
        assert list(window.token_ids) == list(range(100 + window.start, 100 + window.start + size))
        assert window.num_scored == size - window.first_scored
    return [window.start + i for window in windows for i in range(window.first_scored, size)]


def test_windows_side_by_side_leave_out_their_first_tokens_and_the_tail() -> None:
    assert scored(size=4, stride=4, num_tokens=11) == [1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_overlapping_windows_count_each_token_once(stride: int) -> None:
    found = scored(size=4, stride=stride, num_tokens=13)
    last = 3 + (13 - 4) // stride * stride
    assert found == list(range(1, last + 1))


def test_overlap_gives_context() -> None:
    windows = cut_windows(range(20), WindowPlan(8, 2, None))
    assert [window.first_scored for window in windows] == [1, 6, 6, 6, 6, 6, 6]


def test_the_limit_takes_the_first_windows() -> None:
    assert scored(size=2, stride=2, num_tokens=100, limit=3) == [1, 3, 5]


def test_a_text_as_long_as_a_window_is_one_window() -> None:
    assert scored(size=5, stride=5, num_tokens=5) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("size", "stride", "message"),
    [(8, 9, "stride=9 would skip tokens"), (11, 11, "window=11: the text has only 10 tokens")],
)
def test_impossible_cuts_are_refused(size: int, stride: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cut_windows(range(10), WindowPlan(size, stride, None))
