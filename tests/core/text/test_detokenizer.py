"""Incremental text against whole decodes: characters, stop strings and token counts, however the tokens arrive."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenloom.engine_output import EngineOutput, RequestTimes
from tokenloom.request import FinishReason, Request
from tokenloom.sampling_params import SamplingParams
from tokenloom.text import IncrementalDetokenizer, TextDelta, Tokenizer
from tokenloom.text.output_processor import OutputProcessor

REPLY = "Hello, hello! 👨‍👩‍👧 日本日本語 e\u0301e\u0301 aabaabaac \n\n<end> naïve 🇩🇪🇩🇪"


def _chunks(ids: Sequence[int], rng: random.Random) -> list[list[int]]:
    chunks, start = [], 0
    while start < len(ids):
        end = start + rng.randint(1, 6)
        chunks.append(list(ids[start:end]))
        start = end
    return chunks


def _run(detokenizer: IncrementalDetokenizer, chunks: list[list[int]]) -> TextDelta:
    """Pushes until a stop, else finishes; returns the whole text, with the last delta's stop and count."""
    text = ""
    for chunk in chunks:
        delta = detokenizer.push(chunk)
        text += delta.text
        if delta.stop is not None:
            return TextDelta(text, delta.stop, delta.num_tokens)
    delta = detokenizer.finish()
    return TextDelta(text + delta.text, delta.stop, delta.num_tokens)


def _expected(tokenizer: Tokenizer, ids: Sequence[int], stop: tuple[str, ...], include: bool) -> TextDelta:
    """The same by brute force over the finished text (which must be valid UTF-8)."""
    text = tokenizer.decode(ids)
    found = [(text.index(string) + len(string), -len(string), string) for string in stop if string in text]
    if not found:
        return TextDelta(text, None, len(ids))
    end, _, string = min(found)
    needed = next(n for n in range(1, len(ids) + 1) if len(tokenizer.decode(ids[:n]).rstrip("\ufffd")) >= end)
    return TextDelta(text[: end if include else end - len(string)], string, needed)


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False, allow_special=False)


class TestWithoutStop:
    @given(data=st.data())
    @settings(max_examples=300, deadline=None, derandomize=True)
    def test_deltas_join_to_the_decode_of_any_tokens(
        self,
        byte_tokenizer: Tokenizer,
        spaced_tokenizer: Tokenizer,
        scored_tokenizer: Tokenizer,
        unigram_tokenizer: Tokenizer,
        data: st.DataObject,
    ) -> None:
        tokenizer = data.draw(
            st.sampled_from([byte_tokenizer, spaced_tokenizer, scored_tokenizer, unigram_tokenizer]), "tokenizer"
        )
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40), "ids")
        skip, continues = data.draw(st.booleans(), "skip"), data.draw(st.booleans(), "continues")
        chunks = _chunks(ids, random.Random(data.draw(st.integers(0, 99))))
        detokenizer = IncrementalDetokenizer(tokenizer, (), skip_special_tokens=skip, continues=continues)
        expected = tokenizer.decode(ids, skip_special_tokens=skip, continues=continues)
        assert _run(detokenizer, chunks) == TextDelta(expected, None, len(ids))

    @given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="▁\ufffd"), max_size=30))
    @settings(max_examples=300, deadline=None, derandomize=True)
    def test_pushes_never_show_part_of_a_character(self, byte_tokenizer: Tokenizer, text: str) -> None:
        detokenizer = IncrementalDetokenizer(byte_tokenizer, ())
        shown = "".join(detokenizer.push([token_id]).text for token_id in _ids(byte_tokenizer, text))
        assert shown == text
        assert detokenizer.finish().text == ""

    def test_push_shows_a_character_with_its_last_byte(self, tokenizer: Tokenizer) -> None:
        ids = _ids(tokenizer, "😺")
        assert len(ids) > 1
        detokenizer = IncrementalDetokenizer(tokenizer, ())
        assert [detokenizer.push([token_id]).text for token_id in ids] == [""] * (len(ids) - 1) + ["😺"]

    def test_finish_shows_half_a_character_as_a_replacement(self, tokenizer: Tokenizer) -> None:
        ids = _ids(tokenizer, "a😺")[:-1]
        detokenizer = IncrementalDetokenizer(tokenizer, ())
        assert detokenizer.push(ids).text == "a"
        assert detokenizer.finish() == TextDelta("\ufffd", None, len(ids))
        assert tokenizer.decode(ids) == "a\ufffd"

    def test_control_tokens_add_text_only_when_asked(self, byte_tokenizer: Tokenizer) -> None:
        ids = byte_tokenizer.encode("dog<|im_end|>")
        assert IncrementalDetokenizer(byte_tokenizer, ()).push(ids) == TextDelta("dog", None, len(ids))
        detokenizer = IncrementalDetokenizer(byte_tokenizer, (), skip_special_tokens=False)
        assert detokenizer.push(ids).text == "dog<|im_end|>"

    def test_only_the_first_space_of_a_spaced_text_goes(self, spaced_tokenizer: Tokenizer) -> None:
        ids = [1, *_ids(spaced_tokenizer, " dog"), 1, *_ids(spaced_tokenizer, "dog")]
        detokenizer = IncrementalDetokenizer(spaced_tokenizer, ())
        assert "".join(detokenizer.push([token_id]).text for token_id in ids) == " dog dog"

    def test_an_empty_output_has_no_text(self, tokenizer: Tokenizer) -> None:
        detokenizer = IncrementalDetokenizer(tokenizer, ("x",))
        assert detokenizer.push([]) == TextDelta("", None, 0)
        assert detokenizer.finish() == TextDelta("", None, 0)


class TestContext:
    """A space that begins an output belongs to the text, unless nothing comes before it."""

    SPACED = ("spaced_tokenizer", "scored_tokenizer")

    @given(text=st.text(alphabet="the dog\n<|é", max_size=20), cut=st.integers(0, 20), skip=st.booleans())
    @settings(max_examples=200, deadline=None, derandomize=True)
    def test_prompt_and_output_join_to_the_whole_text(
        self,
        byte_tokenizer: Tokenizer,
        spaced_tokenizer: Tokenizer,
        scored_tokenizer: Tokenizer,
        text: str,
        cut: int,
        skip: bool,
    ) -> None:
        for tokenizer in (byte_tokenizer, spaced_tokenizer, scored_tokenizer):
            ids = [1, *_ids(tokenizer, text)]
            prompt, output = ids[:cut], ids[cut:]
            if "\ufffd" in tokenizer.decode(prompt):  # the cut is within a character
                continue
            continues = tokenizer.has_text(prompt, skip_special_tokens=skip)
            joined = tokenizer.decode(prompt, skip_special_tokens=skip)
            detokenizer = IncrementalDetokenizer(tokenizer, (), skip_special_tokens=skip, continues=continues)
            joined += _run(detokenizer, [[token_id] for token_id in output]).text
            assert joined == tokenizer.decode(ids, skip_special_tokens=skip)

    @pytest.mark.parametrize("fixture", SPACED)
    def test_a_continuation_keeps_its_first_space(self, request: pytest.FixtureRequest, fixture: str) -> None:
        tokenizer: Tokenizer = request.getfixturevalue(fixture)
        ids = _ids(tokenizer, "dog")
        assert tokenizer.decode(ids) == "dog"
        assert tokenizer.decode(ids, continues=True) == " dog"
        assert IncrementalDetokenizer(tokenizer, (), continues=True).push(ids).text == " dog"
        assert IncrementalDetokenizer(tokenizer, ("do",), continues=True).push(ids).text == " "

    @pytest.mark.parametrize("fixture", SPACED)
    def test_only_tokens_that_are_shown_are_context(self, request: pytest.FixtureRequest, fixture: str) -> None:
        tokenizer: Tokenizer = request.getfixturevalue(fixture)
        padded_row = tokenizer.vocab_size - 1
        assert not tokenizer.has_text([])
        assert not tokenizer.has_text([1, 2, 1])
        assert tokenizer.has_text([1], skip_special_tokens=False)
        assert tokenizer.has_text([1, *_ids(tokenizer, "x")])
        if not tokenizer.id_to_token(padded_row):
            assert not tokenizer.has_text([padded_row])

    @pytest.mark.parametrize("fixture", SPACED)
    @pytest.mark.parametrize(("prompt", "text"), [("The quick", " dog"), ("", "dog")])
    def test_outputs_of_requests_follow_their_prompts(
        self, request: pytest.FixtureRequest, fixture: str, prompt: str, text: str
    ) -> None:
        tokenizer: Tokenizer = request.getfixturevalue(fixture)
        prompt_ids = tokenizer.encode(prompt)
        assert prompt_ids[0] == 1
        processor = OutputProcessor(tokenizer, lambda *_: None)
        processor.add(Request("r", prompt_ids, SamplingParams(), seed=0, max_total_tokens=99))
        output = EngineOutput(
            *("r", _ids(tokenizer, "dog"), (), FinishReason.LENGTH, None, 0, None, 0.0, RequestTimes(0.0))
        )
        assert [delta.text for delta in processor.process([output])] == [text]


class TestInvalidBytes:
    """Bytes that are not UTF-8: each maximal part that could have begun a character is one U+FFFD, as Python has it."""

    CASES = [
        *(b"\x80", b"a\x80\x80b", b"\xc3", b"\xc3(", b"\xc3\xc3\xa9", b"\xe6\x97a", b"\xe6\x97\xe6\x97\xa5"),
        *(b"\xf0\x9f\x98", b"\xf0\x9f\x98\xf0\x9f\x98\x80", b"\xf0\x9fx\x98\x80", b"\xc0\x80", b"\xed\xa0\x80"),
        *(b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xff\xfe", b"\xe2\x82", b"\xef\xbf\xbd", b"\x00"),
    ]

    @staticmethod
    def _byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
        ids = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size - 1, -1, -1)}
        return [ids[bytes([byte])] for byte in data]

    @pytest.mark.parametrize("data", CASES)
    def test_whole_and_incremental_text_agree(self, tokenizer: Tokenizer, data: bytes) -> None:
        ids = self._byte_ids(tokenizer, data)
        expected = data.decode("utf-8", errors="replace")
        assert tokenizer.decode(ids) == expected
        for size in (1, 2, 3, len(ids)):
            chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
            assert _run(IncrementalDetokenizer(tokenizer, ()), chunks) == TextDelta(expected, None, len(ids))

    @given(
        data=st.lists(
            st.sampled_from([b"a", b"ab", b"\xc3", b"\xa9", b"\xe6\x97", b"\xa5", b"\xf0\x9f\x98\x80", b"\xff"])
        ),
        stop=st.lists(
            st.sampled_from(["a", "ab", "aa", "b\ufffd", "\ufffd", "\ufffd\ufffd", "\xe9", "\u65e5a"]), max_size=3
        ),
        seed=st.integers(0, 99),
    )
    @settings(max_examples=300, deadline=None, derandomize=True)
    def test_stops_are_found_whatever_the_bytes_and_the_chunks(
        self, byte_tokenizer: Tokenizer, data: list[bytes], stop: list[str], seed: int
    ) -> None:
        ids = self._byte_ids(byte_tokenizer, b"".join(data))
        text = byte_tokenizer.decode(ids)
        found = [(text.index(string) + len(string), -len(string), string) for string in stop if string in text]
        result = _run(IncrementalDetokenizer(byte_tokenizer, tuple(stop)), _chunks(ids, random.Random(seed)))
        if not found:
            assert (result.text, result.stop) == (text, None)
        else:
            end, _, string = min(found)
            assert (result.text, result.stop) == (text[: end - len(string)], string)


class TestStop:
    @pytest.mark.parametrize("include", [False, True])
    def test_every_substring_of_a_reply_stops_it(self, tokenizer: Tokenizer, include: bool) -> None:
        ids = _ids(tokenizer, REPLY)
        rng = random.Random(0)
        for length in range(2, 7):
            for start in range(len(REPLY) - length + 1):
                stop = (REPLY[start : start + length],)
                expected = _expected(tokenizer, ids, stop, include)
                assert expected.stop == stop[0]
                for chunks in ([ids], [[token_id] for token_id in ids], _chunks(ids, rng)):
                    detokenizer = IncrementalDetokenizer(tokenizer, stop, include_stop_str=include)
                    assert _run(detokenizer, chunks) == expected, (stop, chunks)

    def test_any_set_of_stop_strings_gives_what_brute_force_gives(self, tokenizer: Tokenizer) -> None:
        ids = _ids(tokenizer, REPLY)
        rng = random.Random(1)
        for _ in range(500):
            stop = []
            for _ in range(rng.randint(1, 4)):
                start, length = rng.randrange(len(REPLY)), rng.randint(1, 6)
                # Half of them are changed at the end, so that they begin to match and then do not.
                stop.append(REPLY[start : start + length] + rng.choice(["", "", "\x01", "b"]))
            expected = _expected(tokenizer, ids, tuple(stop), include=False)
            detokenizer = IncrementalDetokenizer(tokenizer, tuple(stop))
            assert _run(detokenizer, _chunks(ids, rng)) == expected, stop

    @pytest.mark.parametrize(
        ("stop", "found", "text"),
        [
            (("abc", "ab"), "ab", "x"),  # one is a prefix of the other: the shorter ends first
            (("ab", "abd"), "ab", "x"),
            (("bc", "abc"), "abc", "x"),  # equal ends: the longest
            (("c", "abcde"), "c", "xab"),
            (("abcdf", "cd"), "cd", "xab"),
            (("zz", "e"), "e", "xabcd"),
        ],
    )
    def test_the_stop_that_ends_first_wins_and_then_the_longest(
        self, tokenizer: Tokenizer, stop: tuple[str, ...], found: str, text: str
    ) -> None:
        ids = _ids(tokenizer, "xabcdef")
        for order in (stop, stop[::-1]):
            for chunks in ([ids], [[token_id] for token_id in ids]):
                result = _run(IncrementalDetokenizer(tokenizer, order), chunks)
                assert (result.stop, result.text) == (found, text)

    @pytest.mark.parametrize("stop", [("aabaac",), ("aab", "zz"), ("abaabaax",), ("a\n",), ("👧 日x", "語 e\u0301?")])
    def test_no_more_is_held_back_than_may_become_a_stop(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        text = REPLY.replace("aabaabaac", "aabaabaad").replace("aab", "a-b") if "aab" in stop else REPLY
        detokenizer = IncrementalDetokenizer(tokenizer, stop)
        ids, shown = _ids(tokenizer, text), ""
        for count, token_id in enumerate(ids, start=1):
            delta = detokenizer.push([token_id])
            shown += delta.text
            if delta.stop is not None:
                break
            whole = tokenizer.decode(ids[:count]).rstrip("\ufffd")
            ends = [n for string in stop for n in range(1, len(string)) if whole.endswith(string[:n])]
            assert shown == whole[: len(whole) - max(ends, default=0)]

    def test_a_run_of_several_tokens_stops_at_the_token_that_completes_the_stop(
        self, byte_tokenizer: Tokenizer
    ) -> None:
        parts = ["The", " dog", " is", " over", " there"]
        ids = [token_id for part in parts for token_id in _ids(byte_tokenizer, part)]
        delta = IncrementalDetokenizer(byte_tokenizer, ("g i",)).push(ids)
        needed = len([t for part in parts[:2] for t in _ids(byte_tokenizer, part)]) + 1
        while "g i" not in byte_tokenizer.decode(ids[:needed]):
            needed += 1
        assert delta == TextDelta("The do", "g i", needed)
        assert needed < len(ids)

    def test_tokens_are_counted_from_the_first_push(self, byte_tokenizer: Tokenizer) -> None:
        first, second = byte_tokenizer.encode("The dog<|im_end|>"), _ids(byte_tokenizer, "s!s!")
        detokenizer = IncrementalDetokenizer(byte_tokenizer, ("gs!",))
        assert detokenizer.push(first) == TextDelta("The do", None, len(first))
        needed = next(n for n in range(len(second)) if byte_tokenizer.decode(second[:n]).startswith("s!"))
        assert detokenizer.push(second) == TextDelta("", "gs!", len(first) + needed)

    def test_finish_shows_what_was_held_back(self, tokenizer: Tokenizer) -> None:
        detokenizer = IncrementalDetokenizer(tokenizer, ("dog!",))
        ids = _ids(tokenizer, "the dog")
        assert detokenizer.push(ids) == TextDelta("the ", None, len(ids))
        assert detokenizer.finish() == TextDelta("dog", None, len(ids))

    def test_finish_can_meet_a_stop_in_the_replacement_character(self, byte_tokenizer: Tokenizer) -> None:
        detokenizer = IncrementalDetokenizer(byte_tokenizer, ("\ufffd",))
        ids = _ids(byte_tokenizer, "a😺")[:-1]
        assert detokenizer.push(ids).text == "a"
        assert detokenizer.finish() == TextDelta("", "\ufffd", len(ids))

    def test_nothing_may_follow_the_end(self, byte_tokenizer: Tokenizer) -> None:
        ids = _ids(byte_tokenizer, "the dog")
        stopped = IncrementalDetokenizer(byte_tokenizer, ("dog",))
        assert stopped.push(ids).stop == "dog"
        finished = IncrementalDetokenizer(byte_tokenizer, ())
        finished.finish()
        for detokenizer in (stopped, finished):
            with pytest.raises(AssertionError, match="after the end"):
                detokenizer.push(ids)
            with pytest.raises(AssertionError, match="after the end"):
                detokenizer.finish()

    def test_an_empty_stop_string_is_our_own_bug(self, byte_tokenizer: Tokenizer) -> None:
        with pytest.raises(AssertionError, match="empty"):
            IncrementalDetokenizer(byte_tokenizer, ("a", ""))
