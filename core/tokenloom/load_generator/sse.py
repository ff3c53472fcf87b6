"""Server-sent events, read piece by piece as they arrive."""

from __future__ import annotations

from typing import final

__all__ = ["SseParser"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FAST_PREFIX = b"data: "
_DATA_FIELDS = (b"data", b"error")
"""Older llama-server sends its errors in a field of their own."""


@final
class SseParser:
    """Takes bytes as they come, cut anywhere, and yields the data of each event that is complete.

    Lines may end in LF, CRLF or CR. Comments and fields other than data (event, id, retry) are skipped, events without
    data too.

    Source: WHATWG HTML, "Server-sent events", section 9.2.6 (parsing and interpretation).
    """

    def __init__(self) -> None:
        self._rest = b""
        self._ended_in_cr = False
        self._is_first = True

    def feed(self, data: bytes) -> list[bytes]:
        """The data of all events that end within `data`, in order."""
        if b"\r" in data or self._ended_in_cr:
            data = self._with_plain_line_ends(data)
        if self._is_first and data:
            data = self._without_byte_order_mark(data)
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        events: list[bytes] = []
        for block in blocks:
            # Nearly every event is one such line.
            if block.startswith(_FAST_PREFIX) and b"\n" not in block:
                events.append(block[len(_FAST_PREFIX) :])
            elif (found := _data_of(block)) is not None:
                events.append(found)
        return events

    def finish(self) -> list[bytes]:
        """The last event at the end of the stream, of a server that leaves out the blank line behind it."""
        found, self._rest = _data_of(self._rest), b""
        return [] if found is None else [found]

    def _with_plain_line_ends(self, data: bytes) -> bytes:
        if not data:
            return data
        is_second_half = self._ended_in_cr and data.startswith(b"\n")
        self._ended_in_cr = data.endswith(b"\r")
        return data[is_second_half:].replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _without_byte_order_mark(self, data: bytes) -> bytes:
        start = self._rest + data
        if len(start) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(start):
            return data
        self._is_first, self._rest = False, b""
        return start.removeprefix(_BYTE_ORDER_MARK)


def _data_of(block: bytes) -> bytes | None:
    """The data lines of one event, joined; None if it has none."""
    lines: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field in _DATA_FIELDS:
            lines.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(lines) if lines else None
