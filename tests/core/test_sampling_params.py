"""SamplingParams: every field is checked when the object is made."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tokenloom.errors import RequestError, TokenloomError
from tokenloom.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_NUM_CHOICES,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    MIN_REPETITION_PENALTY,
    SamplingParams,
)

INTEGERS = ["top_k", "seed", "n", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"]
FLOATS = ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
NUMBERS = INTEGERS + FLOATS
FLAGS = ["include_stop_str_in_output", "ignore_eos", "skip_special_tokens"]
LISTS = ["stop", "bad_words", "stop_token_ids", "allowed_token_ids", "logit_bias", "logits_processors"]
MAY_BE_NONE = ["seed", "max_tokens", "logprobs", "prompt_logprobs"]
WILD: list[Any] = [
    *(math.nan, math.inf, -math.inf, -1, 0, 1, 2, -2.5, 2**31, 2**63, -(2**63) - 1, 1e308, 10**400, 10**5000),
    *("1", "", True, False, None, b"1", 1j, object(), set(), range(3)),
    *([], {}, (), [1], [None], [True], [1.5], ["a"], [""], [2**63], [math.nan], [[1]], {1: 2}, {"a": 1}, {1: None}),
    *({1: math.nan}, {1: 10**400}, {-1: 1}, {True: 1}, {1.5: 1}, {"a": {}}, {"": {}}, {"a": {1: 2}}, {"a": [1]}),
]


def made(name: str, value: Any) -> SamplingParams:
    fields: dict[str, Any] = {name: value}
    return SamplingParams(**fields)


def test_defaults_are_the_documented_ones() -> None:
    params = SamplingParams()
    assert dataclasses.asdict(params) == {
        "temperature": 1.0,
        "top_k": -1,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "allowed_token_ids": None,
        "bad_words": (),
        "seed": None,
        "n": 1,
        "max_tokens": 16,
        "min_tokens": 0,
        "stop": (),
        "stop_token_ids": (),
        "include_stop_str_in_output": False,
        "ignore_eos": False,
        "logprobs": None,
        "prompt_logprobs": None,
        "logits_processors": {},
        "skip_special_tokens": True,
    }


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, True, False, "1", [], {}, (1,), 1e308, -2, 2**63, -(2**63) - 1, 10**400]
)
def test_wild_value_is_refused_with_field_value_and_advice(name: str, value: Any) -> None:
    if value == -2 and name in ("seed", "presence_penalty", "frequency_penalty"):
        assert getattr(made(name, value), name) == -2
        return
    with pytest.raises(RequestError) as refusal:
        made(name, value)
    assert refusal.value.param == name
    message = str(refusal.value)
    assert message.startswith(name)
    assert repr(value) in message
    assert "; try " in message


@pytest.mark.parametrize("name", NUMBERS + FLAGS + LISTS)
@pytest.mark.parametrize("value", WILD, ids=lambda value: type(value).__name__)
def test_every_value_is_accepted_or_refused_by_name(name: str, value: Any) -> None:
    try:
        outcome: SamplingParams | RequestError = made(name, value)
    except RequestError as refusal:
        outcome = refusal
    if isinstance(outcome, RequestError):
        assert outcome.param == name
        assert str(outcome).startswith(name)
    else:
        assert made(name, getattr(outcome, name)) == outcome, "a stored value is not accepted again"


@pytest.mark.parametrize("name", [name for name in NUMBERS if name not in MAY_BE_NONE] + FLAGS)
def test_none_is_refused_where_it_has_no_meaning(name: str) -> None:
    with pytest.raises(RequestError) as refusal:
        made(name, None)
    assert refusal.value.param == name


@pytest.mark.parametrize("name", MAY_BE_NONE)
def test_none_is_accepted_where_it_has_a_meaning(name: str) -> None:
    assert getattr(made(name, None), name) is None


@pytest.mark.parametrize("name", INTEGERS)
def test_float_is_refused_where_an_integer_belongs(name: str) -> None:
    with pytest.raises(RequestError, match="an integer from"):
        made(name, 1.0)


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "true"])
def test_flag_accepts_only_bools(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as refusal:
        made(name, value)
    assert refusal.value.param == name


@pytest.mark.parametrize(
    ("name", "legal", "illegal"),
    [
        ("temperature", [0, 1e-6, 1, MAX_TEMPERATURE], [-1e-9, MAX_TEMPERATURE * 1.001]),
        ("top_k", [-1, 0, 1, 2**31 - 1], [-2, 2**31]),
        ("top_p", [1e-300, 0.5, 1], [0, 0.0, -0.1, 1.0000001]),
        ("min_p", [0, 1e-300, 1], [-1e-9, 1.0000001]),
        ("seed", [0, -1, 2**63 - 1, -(2**63)], [2**63, -(2**63) - 1]),
        ("n", [1, MAX_NUM_CHOICES], [0, MAX_NUM_CHOICES + 1]),
        ("max_tokens", [1, 2**31 - 1], [0, -1, 2**31]),
        ("min_tokens", [0, 16], [-1, 17]),
        ("logprobs", [0, MAX_LOGPROBS], [-1, MAX_LOGPROBS + 1]),
        ("prompt_logprobs", [0, MAX_LOGPROBS], [-1, MAX_LOGPROBS + 1]),
        (
            "repetition_penalty",
            [MIN_REPETITION_PENALTY, 0.5, 1, 2, MAX_REPETITION_PENALTY],
            [0, 0.0, -1.0, 1e-7, MAX_REPETITION_PENALTY * 1.01],
        ),
        ("presence_penalty", [-MAX_PENALTY, 0, MAX_PENALTY], [-2.0001, 2.0001]),
        ("frequency_penalty", [-MAX_PENALTY, 0, MAX_PENALTY], [-2.0001, 2.0001]),
        ("logit_bias", [{0: -MAX_LOGIT_BIAS}, {2**31 - 1: MAX_LOGIT_BIAS}], [{0: 100.01}, {0: -100.01}, {2**31: 1}]),
        (
            "allowed_token_ids",
            [[0], (2**31 - 1,), range(3), np.arange(2)],
            [[], (), [-1], [2**31], [0, True], range(0), {0: 1}, b"a", [1.0], np.ones(2), np.array([[1]])],
        ),
    ],
)
def test_ends_of_each_range(name: str, legal: list[Any], illegal: list[Any]) -> None:
    for value in legal:
        made(name, value)
    for value in illegal:
        with pytest.raises(RequestError) as refusal:
            made(name, value)
        assert refusal.value.param == name


def test_floats_may_be_given_as_integers_and_are_stored_as_floats() -> None:
    assert {type(getattr(made(name, 1), name)) for name in FLOATS} == {float}
    assert type(SamplingParams(logit_bias={0: 1}).logit_bias[0]) is float


def test_top_k_zero_is_stored_as_off() -> None:
    assert SamplingParams(top_k=0) == SamplingParams(top_k=-1)


def test_min_tokens_above_max_tokens_is_refused_but_not_without_a_maximum() -> None:
    with pytest.raises(RequestError, match="max_tokens=4") as refusal:
        SamplingParams(min_tokens=5, max_tokens=4)
    assert refusal.value.param == "min_tokens"
    assert SamplingParams(min_tokens=500, max_tokens=None).min_tokens == 500


@pytest.mark.parametrize("given", ["END", ["END"], ("END",)])
def test_stop_is_stored_as_a_tuple(given: Any) -> None:
    assert SamplingParams(stop=given).stop == ("END",)


@pytest.mark.parametrize("name", ["stop", "bad_words"])
@pytest.mark.parametrize("given", ["", [""], ["a", ""], [1], [None], {"a"}, 3, None, b"a"])
def test_stop_and_bad_words_refuse_what_is_no_string(name: str, given: Any) -> None:
    with pytest.raises(RequestError) as refusal:
        made(name, given)
    assert refusal.value.param == name


@pytest.mark.parametrize("given", ["foo", ["foo"], ("foo",)])
def test_bad_words_are_stored_as_a_tuple(given: Any) -> None:
    assert SamplingParams(bad_words=given).bad_words == ("foo",)


def test_dictionaries_are_copied_and_none_is_an_empty_one() -> None:
    biases, processors = {3: 1}, {"no_repeat_ngram": {"size": 3}, "other": None}
    params = made("logit_bias", biases).with_changes(logits_processors=processors)
    biases[4], processors["no_repeat_ngram"] = 5, {"size": 4}
    assert params.logit_bias == {3: 1.0}
    assert params.logits_processors == {"no_repeat_ngram": {"size": 3}, "other": {}}
    assert made("logit_bias", None) == made("logits_processors", None) == SamplingParams()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"logit_bias": {1: 2.0}, "bad_words": "x"}, False),
    ],
)
def test_has_penalties(changes: dict[str, Any], expected: bool) -> None:
    assert SamplingParams(**changes).has_penalties is expected


@pytest.mark.parametrize("given", [[0, 7], (0, 7), range(0, 8, 7), np.array([0, 7]), [np.int32(0), np.uint8(7)]])
def test_stop_token_ids_are_stored_as_a_tuple_of_plain_integers(given: Any) -> None:
    stored = SamplingParams(stop_token_ids=given).stop_token_ids
    assert stored == (0, 7)
    assert all(type(token_id) is int for token_id in stored)


@pytest.mark.parametrize("given", [[-1], [True], [1.0], ["1"], [2**31], "12", 5, None, {1}])
def test_stop_token_ids_refuse_what_is_no_id(given: Any) -> None:
    with pytest.raises(RequestError) as refusal:
        SamplingParams(stop_token_ids=given)
    assert refusal.value.param == "stop_token_ids"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"temperature": 0}, True),
        ({"temperature": 9e-7}, True),
        ({"temperature": 1e-6}, False),
        ({"top_k": 1}, True),
        ({"top_k": 2}, False),
        ({"top_p": 1e-9}, False),
    ],
)
def test_is_greedy(changes: dict[str, Any], expected: bool) -> None:
    assert SamplingParams(**changes).is_greedy is expected


def test_with_changes_checks_again_and_leaves_the_original() -> None:
    params = SamplingParams(temperature=0.5, stop="x")
    changed = params.with_changes(top_k=5)
    assert (changed.temperature, changed.top_k, changed.stop) == (0.5, 5, ("x",))
    assert params.top_k == -1
    with pytest.raises(RequestError):
        params.with_changes(top_p=2.0)


def test_params_are_frozen_and_hashable() -> None:
    params = SamplingParams(stop=["a"], stop_token_ids=[1])
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2  # type: ignore[misc]
    assert hash(params) == hash(SamplingParams(stop="a", stop_token_ids=(1,)))
    biased = [SamplingParams(logit_bias={1: bias}, logits_processors={"a": {"b": [bias]}}) for bias in (2.0, 3.0)]
    assert len({*biased, *biased}) == 2


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("stop_token_ids", [3, -1], "stop_token_ids: each id must be an integer from 0 to 2147483647, got -1;"),
        ("allowed_token_ids", [True], "allowed_token_ids: each id must be an integer from 0 to 2147483647, got True;"),
        ("logit_bias", {-1: 2.0}, "logit_bias: each token id must be an integer from 0 to 2147483647, got -1;"),
        ("logit_bias", {7: 200}, "logit_bias: the number of token 7 must be a finite number from -100 to 100, got 200"),
    ],
)
def test_refusal_of_one_of_many_says_so(name: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError) as refusal:
        made(name, value)
    assert str(refusal.value).startswith(message)


def test_refusal_is_both_ours_and_a_value_error() -> None:
    with pytest.raises(TokenloomError):
        SamplingParams(n=0)
    with pytest.raises(ValueError, match="n must be an integer from 1 to 128, got 0"):
        SamplingParams(n=0)
