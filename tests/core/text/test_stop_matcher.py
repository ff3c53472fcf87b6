"""Stop strings over a tiny alphabet, where everything overlaps, against a search by brute force."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenloom.text.stop_matcher import StopMatcher


@given(
    stop=st.lists(st.text("ab", min_size=1, max_size=8), min_size=1, max_size=3).map(tuple),
    pieces=st.lists(st.text("ab", max_size=5), max_size=12),
    include=st.booleans(),
)
@settings(max_examples=1000, deadline=None, derandomize=True)
def test_feed_finds_what_a_search_finds_and_holds_back_no_more_than_needed(
    stop: tuple[str, ...], pieces: list[str], include: bool
) -> None:
    matcher = StopMatcher(stop, include_stop_str=include)
    seen = shown = ""
    for piece in pieces:
        seen += piece
        visible, found = matcher.feed(piece)
        shown += visible
        ends = [(seen.index(string) + len(string), -len(string), string) for string in stop if string in seen]
        if ends:
            end, _, string = min(ends)
            assert (found, shown) == (string, seen[: end if include else end - len(string)])
            return
        assert found is None
        prefixes = [n for string in stop for n in range(1, len(string)) if seen.endswith(string[:n])]
        assert shown == seen[: len(seen) - max(prefixes, default=0)]
    assert shown + matcher.flush() == seen
