"""Server-sent events: framing in every legal form, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.load_generator.sse import SseParser


def parse(*pieces: bytes) -> list[bytes]:
    parser = SseParser()
    return [data for piece in pieces for data in parser.feed(piece)] + parser.finish()


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b'data: {"a": 1}\n\ndata: [DONE]\n\n', [b'{"a": 1}', b"[DONE]"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
        (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": a comment\n\n:\n\ndata: a\n\n", [b"a"]),
        (b": ping\ndata: a\n: pong\n\n", [b"a"]),
        (b"event: message\nid: 7\nretry: 10\ndata: a\n\n", [b"a"]),
        (b"event: nothing\n\ndata: a\n\n", [b"a"]),
        (b"\n\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data\n\ndata: a\n\n", [b"", b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"error: {}\n\n", [b"{}"]),
        (b"data: a\n\ndata: [DONE]", [b"a", b"[DONE]"]),
        (b"data: a\n\ndata: [DONE]\n", [b"a", b"[DONE]"]),
        ('data: {"text": "d\u00e9j\u00e0\u2028"}\n\n'.encode(), ['{"text": "d\u00e9j\u00e0\u2028"}'.encode()]),
        (b"", []),
    ],
)
def test_events_are_read_in_every_form_and_cut_at_every_place(stream: bytes, events: list[bytes]) -> None:
    assert parse(stream) == events
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == events
    for cut in range(len(stream)):
        assert parse(stream[:cut], b"", stream[cut:]) == events


@given(st.lists(st.sampled_from([b"data: x", b"data:", b"\n", b"\r", b"\r\n", b": c", b"\xef\xbb\xbf"])), st.data())
def test_cuts_change_nothing(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parse(*pieces) == parse(stream)


def test_an_event_is_told_as_soon_as_it_is_complete() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n\nda") == [b"a"]
    assert parser.feed(b"ta: b\n") == []
    assert parser.feed(b"\n") == [b"b"]
    # After a CR the blank line may still become CRLF; the event does not wait for it.
    assert parser.feed(b"data: c\r\n\r") == [b"c"]
    assert parser.feed(b"\ndata: d\n\n") == [b"d"]
