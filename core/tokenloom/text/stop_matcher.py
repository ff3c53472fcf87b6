"""Finds stop strings in text that arrives in pieces, holding back no more than what may still become one."""

from __future__ import annotations

from typing import final

__all__ = ["StopMatcher"]


@final
class StopMatcher:
    """Looks for several strings at once; the occurrence that ends first wins, among equal ends the longest string.

    For each stop string it keeps how many of its characters the text so far ends with (the automaton of Knuth, Morris
    and Pratt, 1977), so each character costs a constant number of steps per stop string, spread over the text.

    Args:
        stop: the stop strings; none of them empty.
        include_stop_str: the text that may be shown includes the stop string itself.
    """

    def __init__(self, stop: tuple[str, ...], *, include_stop_str: bool) -> None:
        assert all(stop), f"a stop string is empty: {stop!r}"
        self._stop = stop
        self._include = include_stop_str
        self._borders = [_borders(string) for string in stop]
        self._num_matched = [0] * len(stop)
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Takes the next piece of text; returns what may be shown now, and the stop string once one is complete."""
        for end, char in enumerate(text, start=1):
            found = self._advance(char)
            if found is not None:
                seen = self._held + text[:end]
                self._held = ""
                return seen if self._include else seen[: len(seen) - len(found)], found
        seen = self._held + text
        num_shown = len(seen) - max(self._num_matched, default=0)
        self._held = seen[num_shown:]
        return seen[:num_shown], None

    def flush(self) -> str:
        """Returns the text still held back: no more will come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        found: str | None = None
        for index, string in enumerate(self._stop):
            matched = self._num_matched[index]
            borders = self._borders[index]
            while matched and string[matched] != char:
                matched = borders[matched - 1]
            if string[matched] == char:
                matched += 1
            self._num_matched[index] = matched
            if matched == len(string) and (found is None or len(string) > len(found)):
                found = string
        return found


def _borders(string: str) -> list[int]:
    """For each prefix of `string`: the length of its longest proper suffix that is a prefix as well."""
    borders = [0] * len(string)
    length = 0
    for index in range(1, len(string)):
        while length and string[index] != string[length]:
            length = borders[length - 1]
        if string[index] == string[length]:
            length += 1
        borders[index] = length
    return borders
