"""/v1/completions on a tiny model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.server.served_app import Answer, ServedApp

PROMPT = "Once upon"


def text_of(answer: Answer, index: int = 0) -> str:
    """A choice's text, whole or streamed."""
    assert answer.status == 200, answer.body
    if answer.headers["content-type"] == "application/json":
        text: str = answer.json["choices"][index]["text"]
        return text
    parts = [choice for chunk in answer.chunks for choice in chunk["choices"] if choice["index"] == index]
    assert [part["finish_reason"] is None for part in parts] == [True] * (len(parts) - 1) + [False]
    return "".join(part["text"] for part in parts)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 1},
        {"n": 3, "temperature": 1, "seed": 5},
        {"echo": True, "logprobs": 2, "n": 2, "temperature": 1, "seed": 1},
        {"stop": ["O"], "include_stop_str_in_output": True},
        {"stop_token_ids": [79]},
        {"return_token_ids": True, "echo": True},
        {"prompt": ["a", "bc", "def"], "n": 2, "temperature": 2, "seed": 3},
        {"prompt": [[65, 66], [67]], "echo": True},
        {"skip_special_tokens": False, "min_tokens": 4, "repetition_penalty": 1.3},
        {"logit_bias": {"79": -100, "80": 5.5}, "presence_penalty": 1, "frequency_penalty": -0.5},
        {"bad_words": ["O", "x"], "top_k": 5, "top_p": 0.9, "min_p": 0.01, "temperature": 1, "seed": 9},
        {"logits_processors": {"no_repeat_ngram": {"size": 2}}},
        {"allowed_token_ids": [65, 66], "temperature": 1, "seed": 2},
    ],
    ids=str,
)
def test_stream_and_whole_are_equal(api: ServedApp, fields: dict[str, Any]) -> None:
    body = {"prompt": PROMPT, "max_tokens": 12, **fields}
    whole, stream = api.complete(**body), api.complete(**body, stream=True)
    choices = whole.json["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    for choice in choices:
        index = choice["index"]
        assert text_of(stream, index) == choice["text"]
        parts = [part for chunk in stream.chunks for part in chunk["choices"] if part["index"] == index]
        assert (parts[-1]["finish_reason"], parts[-1]["stop_reason"]) == (
            choice["finish_reason"],
            choice["stop_reason"],
        )
        if choice["logprobs"] is not None:
            joined = [value for part in parts if part["logprobs"] for value in part["logprobs"]["token_logprobs"]]
            assert joined == choice["logprobs"]["token_logprobs"]


def test_every_field_of_the_answer_is_there(api: ServedApp) -> None:
    answer = api.complete(prompt=PROMPT, user="me").json
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", "tiny")
    assert answer["created"] > 1_600_000_000
    assert answer["choices"][0]["finish_reason"] == "length"
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (9, 8, 17)


def test_without_max_tokens_there_are_16(api: ServedApp) -> None:
    assert api.post("/v1/completions", {"prompt": PROMPT, "ignore_eos": True}).json["usage"]["completion_tokens"] == 16


def test_text_does_not_depend_on_the_form_of_the_prompt(api: ServedApp) -> None:
    texts = {
        text_of(api.complete(prompt=prompt))
        for prompt in (PROMPT, [PROMPT], list(PROMPT.encode()), [list(PROMPT.encode())])
    }
    assert len(texts) == 1


def test_equal_seeds_give_equal_text(api: ServedApp) -> None:
    drawn = [text_of(api.complete(prompt=PROMPT, temperature=2, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_choices_of_prompts_are_numbered_prompt_by_prompt(api: ServedApp) -> None:
    alone = [text_of(api.complete(prompt=prompt)) for prompt in ("ab", "xyz")]
    choices = api.complete(prompt=["ab", "xyz"], n=2).json["choices"]
    assert [choice["text"] for choice in choices] == [alone[0], alone[0], alone[1], alone[1]]


def test_usage_counts_a_prompt_once_and_what_was_cached(api: ServedApp) -> None:
    prompt = "a prompt that is longer than a block of the cache, so that some of it can be found again"
    api.complete(prompt=prompt)
    usage = api.complete(prompt=prompt, n=2, max_tokens=3).json["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), 6)
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_prompts_are_scored_as_evaluation_harnesses_do_it(api: ServedApp, max_tokens: int) -> None:
    answer = api.complete(prompt=[list(b"Hello"), list(b"Hello")], max_tokens=max_tokens, echo=True, logprobs=1).json
    for choice in answer["choices"]:
        assert choice["text"].startswith("Hello")
        shown = choice["logprobs"]
        assert len(shown["tokens"]) == 5 + max_tokens
        assert shown["tokens"][:5] == list("Hello")
        assert shown["token_logprobs"][0] is None
        assert all(value <= 0 for value in shown["token_logprobs"][1:])
        assert shown["top_logprobs"][0] is None
        assert all(1 <= len(top) <= 2 for top in shown["top_logprobs"][1:])
        assert shown["text_offset"][:5] == [0, 1, 2, 3, 4]
        assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2 * max_tokens


def test_scores_do_not_depend_on_the_cache(api: ServedApp) -> None:
    prompt = "scored twice, behind a prefix that is in the cache by then, for certain"
    first, second = (api.complete(prompt=prompt, max_tokens=0, echo=True, logprobs=0).json for _ in range(2))
    assert first["choices"] == second["choices"]


def test_a_continued_text_scores_as_the_whole(api: ServedApp) -> None:
    drawn = api.complete(prompt=PROMPT, logprobs=0, max_tokens=6, return_token_ids=True).json["choices"][0]
    ids = drawn["prompt_token_ids"] + drawn["token_ids"]
    scored = api.complete(prompt=ids, max_tokens=0, echo=True, logprobs=0).json["choices"][0]
    assert scored["logprobs"]["token_logprobs"][9:] == pytest.approx(drawn["logprobs"]["token_logprobs"], abs=1e-3)


def test_without_echo_max_tokens_0_is_refused(api: ServedApp) -> None:
    assert api.complete(prompt="x", max_tokens=0).error["param"] == "max_tokens"


def test_every_substring_of_a_reply_stops_stream_and_whole_alike(api: ServedApp) -> None:
    reply = text_of(api.complete(prompt="stop", max_tokens=16))
    stops = sorted({reply[a : a + n] for n in range(2, 7) for a in range(0, len(reply) - n, 4)})
    for stop in stops:
        for others in ([], [stop + "zz"], [stop[:1] + "zz"]):
            body = {"prompt": "stop", "max_tokens": 16, "stop": [stop, *others]}
            whole, stream = api.complete(**body), api.complete(**body, stream=True)
            assert text_of(whole) == text_of(stream) == reply.partition(stop)[0]
            choice = whole.json["choices"][0]
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_a_stop_token_is_reported_and_not_shown(api: ServedApp) -> None:
    ids = api.complete(prompt=PROMPT, return_token_ids=True).json["choices"][0]["token_ids"]
    choice = api.complete(prompt=PROMPT, stop_token_ids=[ids[2]], return_token_ids=True).json["choices"][0]
    end = ids.index(ids[2]) + 1
    assert (choice["finish_reason"], choice["stop_reason"], choice["token_ids"]) == ("stop", ids[2], ids[:end])


def test_n_choices_with_a_stop_string_end_one_by_one(api: ServedApp) -> None:
    body = {"prompt": PROMPT, "n": 4, "temperature": 1.5, "seed": 4, "max_tokens": 30}
    free = api.complete(**body).json["choices"]
    stop = next(letter for letter in free[0]["text"][3:] if letter.isprintable() and letter != "�")
    stopped = api.complete(**body, stop=stop).json["choices"]
    assert [choice["text"] for choice in stopped] == [choice["text"].partition(stop)[0] for choice in free]


def test_prompt_logprobs_stand_beside_the_text(api: ServedApp) -> None:
    choice = api.complete(prompt="abc", prompt_logprobs=1).json["choices"][0]
    assert choice["prompt_logprobs"][0] is None
    assert "98" in choice["prompt_logprobs"][1]
    assert api.complete(prompt="abc", prompt_logprobs=1, stream=True).error["param"] == "prompt_logprobs"


def test_output_ends_with_the_context(api: ServedApp) -> None:
    answer = api.complete(prompt=[65] * 253, max_tokens=100).json
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["choices"][0]["finish_reason"] == "length"


def test_usage_in_streams_is_told_only_where_asked_for(api: ServedApp) -> None:
    body = {"prompt": PROMPT, "stream": True}
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
        assert all("usage" not in chunk for chunk in api.complete(**body, stream_options=options).chunks)
    chunks = api.complete(**body, stream_options={"include_usage": True}).chunks
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 8)
    running = api.complete(**body, stream_options={"include_usage": True, "continuous_usage_stats": True}).chunks
    counts = [chunk["usage"]["completion_tokens"] for chunk in running]
    assert counts == sorted(counts)
    assert counts[-1] == 8


def test_all_chunks_of_a_stream_bear_one_head(api: ServedApp) -> None:
    chunks = api.complete(prompt=PROMPT, stream=True, n=2).chunks
    assert len({(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
