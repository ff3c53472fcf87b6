"""Records of requests: exact times, tokens and faults from scripted bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.load_generator.fake_server import completion_events, event
from tokenloom.load_generator.load_request import LoadRequest, Outcome, RequestRecord
from tokenloom.load_generator.stream_recorder import StreamRecorder

REQUEST = LoadRequest(number=3, arrival_s=1.0, body=b"{}", max_tokens=4)


def record_of(*reads: tuple[float, bytes], end_s: float = 9.0) -> RequestRecord:
    recorder = StreamRecorder(REQUEST, scheduled_s=1.0, sent_s=1.5)
    for now_s, data in reads:
        recorder.take(data, now_s)
        if recorder.is_over:
            break
    recorder.finish(end_s)
    return recorder.record()


def text(value: str, **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "text": value, **fields}]})


def test_times_count_from_when_the_request_was_due() -> None:
    first, second, third, last, usage, done = completion_events(["a", "b", "c"])
    record = record_of((2.0, first), (2.5, second), (4.0, third), (4.25, last), (5.0, usage + done))
    assert record.outcome is Outcome.COMPLETED
    assert (record.number, record.scheduled_s, record.sent_s, record.end_s) == (3, 1.0, 1.5, 4.25)
    assert list(record.chunk_times_s) == [2.0, 2.5, 4.0]
    assert list(record.chunk_tokens) == [1, 1, 1]
    assert (record.ttft_s, record.e2e_s, record.tpot_s) == (1.0, 3.25, 2.25 / 2)
    assert (record.num_prompt_tokens, record.num_output_tokens, record.has_usage) == (7, 3, True)
    assert (record.finish_reason, record.has_done, record.failure) == ("length", True, "")


def test_the_first_token_is_the_first_that_is_not_empty() -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
    content = event({"choices": [{"delta": {"content": "a"}, "finish_reason": None}]})
    stop = event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    record = record_of((2.0, role), (3.0, content), (4.0, stop + event("[DONE]")))
    assert (record.ttft_s, record.e2e_s, record.tpot_s) == (2.0, 3.0, None)


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "a"},
        {"reasoning": "a"},
        {"content": None, "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
    ],
)
def test_reasoning_and_tool_calls_are_content(delta: dict[str, Any]) -> None:
    record = record_of((2.0, event({"choices": [{"delta": delta, "finish_reason": "stop"}]})))
    assert (record.outcome, record.ttft_s) == (Outcome.COMPLETED, 1.0)


def test_events_of_one_read_are_one_chunk_of_several_tokens() -> None:
    record = record_of((2.0, text("a") + text("b")), (3.0, text("c") + text("", finish_reason="stop")))
    assert (list(record.chunk_times_s), list(record.chunk_tokens)) == ([2.0, 3.0], [2, 1])
    assert (record.num_output_tokens, record.has_usage) == (3, False)


def test_an_event_that_is_cut_counts_when_it_is_complete() -> None:
    data = text("a", finish_reason="stop")
    record = record_of((2.0, data[:20]), (3.0, data[20:]))
    assert list(record.chunk_times_s) == [3.0]


def test_tokens_are_counted_by_ids_and_by_usage_in_every_chunk() -> None:
    record = record_of((2.0, text("ab", token_ids=[5, 6])), (3.0, text("c", token_ids=[7], finish_reason="stop")))
    assert list(record.chunk_tokens) == [2, 1]
    counted = [
        event({"choices": [{"text": said}], "usage": {"prompt_tokens": 7, "completion_tokens": count}})
        for said, count in (("ab", 2), ("", 3), ("cd", 5))
    ]
    record = record_of(*((2.0 + n, data) for n, data in enumerate(counted)), (9.0, event("[DONE]")))
    assert (list(record.chunk_tokens), record.num_output_tokens, record.has_usage) == ([2, 3], 5, True)


def test_a_total_in_the_last_chunk_says_nothing_of_that_chunk() -> None:
    last = event({"choices": [{"text": "c", "finish_reason": "length"}], "usage": {"completion_tokens": 6}})
    record = record_of((2.0, text("a")), (3.0, text("b")), (4.0, last))
    assert (list(record.chunk_tokens), record.num_output_tokens) == ([1, 1, 1], 6)


def test_a_cached_prompt_is_told() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    record = record_of((2.0, text("a", finish_reason="stop") + event({"choices": [], "usage": usage})))
    assert (record.num_prompt_tokens, record.num_cached_tokens) == (7, 4)


def test_a_missing_done_is_no_failure_and_a_missing_finish_reason_neither() -> None:
    assert record_of((2.0, b"".join(completion_events(["a"], has_done=False)))).outcome is Outcome.COMPLETED
    record = record_of((2.0, text("a")), (3.0, event("[DONE]")))
    assert (record.outcome, record.end_s, record.finish_reason) == (Outcome.COMPLETED, 2.0, None)
    # Without the blank line that ends an event, too.
    assert record_of((2.0, text("a") + b"data: [DONE]")).has_done


@pytest.mark.parametrize(
    ("data", "failure", "words"),
    [
        (text("a"), "broken_stream", "after 1 tokens"),
        (b"", "broken_stream", "after 0 tokens"),
        (text("", finish_reason="stop") + event("[DONE]"), "empty", "finish_reason=stop"),
        (event("[DONE]"), "empty", "without any content"),
        (text("a") + event({"error": {"message": "out of memory", "code": 500}}), "server_error", "out of memory"),
        (event({"error": "plain words"}), "server_error", "plain words"),
        (event({"object": "error", "message": "of another form", "code": 400}), "server_error", "of another form"),
        (b'error: {"code": 500, "message": "of old", "type": "x"}\n\n', "server_error", "of old"),
        (event("{"), "malformed", "{"),
        (event({"choices": 3}), "malformed", "choices"),
    ],
)
def test_faults_are_told_apart(data: bytes, failure: str, words: str) -> None:
    record = record_of((2.0, data), end_s=5.0)
    assert (record.outcome, record.failure) == (Outcome.FAILED, failure)
    assert words in record.message


@pytest.mark.parametrize("code", [503, "503", 429])
def test_an_overload_that_is_told_within_the_stream_is_a_refusal(code: Any) -> None:
    record = record_of((2.0, event({"error": {"message": "too many", "code": code}})))
    assert (record.outcome, record.failure, record.message) == (Outcome.REFUSED, f"http_{code}", "too many")
    # After the first token it is a failure like any other.
    late = event({"error": {"message": "too many", "code": code}})
    assert record_of((2.0, text("a")), (3.0, late)).outcome is Outcome.FAILED


def test_what_comes_after_the_end_does_not_count() -> None:
    record = record_of((2.0, text("a", finish_reason="stop") + event("[DONE]") + text("b") + event({"error": "x"})))
    assert (record.outcome, list(record.chunk_tokens)) == (Outcome.COMPLETED, [1])


def test_the_first_fault_counts_and_messages_are_cut() -> None:
    recorder = StreamRecorder(REQUEST, 1.0, 1.5)
    recorder.fail("timeout", "m" * 1000, 4.0)
    recorder.fail("connection", "later", 5.0)
    recorder.finish(6.0)
    record = recorder.record(is_unfinished=False)
    assert (record.failure, len(record.message), record.end_s) == ("timeout", 300, 4.0)


def test_an_unfinished_request_keeps_what_it_has() -> None:
    recorder = StreamRecorder(REQUEST, 1.0, 1.5)
    recorder.take(text("a"), 2.0)
    record = recorder.record(is_unfinished=True)
    assert (record.outcome, record.num_output_tokens, record.end_s) == (Outcome.UNFINISHED, 1, 2.0)


def test_usual_chunks_of_servers_decode() -> None:
    """Fields beside those that are read, of any type, do not disturb."""
    chunk = {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "system_fingerprint": None,
        "choices": [{"index": 0, "text": "a", "logprobs": None, "finish_reason": "", "stop_reason": None}],
        "usage": None,
        "timings": {"prompt_n": 1},
    }
    record = record_of((2.0, event(chunk)), (3.0, event(json.dumps({**chunk, "choices": []}))))
    assert (record.num_output_tokens, record.finish_reason) == (1, None)
