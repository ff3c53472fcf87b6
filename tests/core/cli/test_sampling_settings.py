"""Sampling keys on the command line: refusals speak its language, and what they advise is accepted there."""

from __future__ import annotations

import re

import pytest

from tokenloom.cli.sampling_settings import SamplingSettings
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError, RequestError
from tokenloom.sampling_params import SamplingParams

WRONG = [
    "max_tokens=-1",
    "min_tokens=-1",
    "temperature=-1",
    "top_k=-2",
    "top_p=2",
    "min_p=2",
    "repetition_penalty=-1",
    "presence_penalty=3",
    "frequency_penalty=3",
    "logit_bias={1:1000}",
    "logit_bias={-1:1}",
    "logit_bias=3",
    "logit_bias=null",
    "allowed_token_ids=[]",
    "allowed_token_ids=[-1]",
    "bad_words=['']",
    "seed=10000000000000000000",
    "n=0",
    "stop=['']",
    "stop_token_ids=[-1]",
    "logits_processors=no_repeat_ngram",
    "logits_processors={no_repeat_ngram:3}",
    "ignore_eos=3",
]


def params(override: str) -> SamplingParams:
    return compose_config([override], command=SamplingSettings).extras_of(SamplingSettings).params()


def refusal(override: str) -> str:
    with pytest.raises((RequestError, ConfigError)) as caught:
        params(override)
    return str(caught.value)


def test_every_key_has_a_wrong_value_here() -> None:
    assert {override.partition("=")[0] for override in WRONG} == set(SamplingSettings.model_fields)


@pytest.mark.parametrize("override", WRONG)
def test_refusals_hold_no_word_of_python(override: str) -> None:
    message = refusal(override)
    for word in ("None", "()", "',", "dictionary", "tuple", "True"):
        assert word not in message


@pytest.mark.parametrize("override", WRONG)
def test_every_value_that_is_advised_is_accepted(override: str) -> None:
    key = override.partition("=")[0]
    for advised in re.findall(rf"(?:; try|as in) ({key}=\S+)", refusal(override)):
        params(advised)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("max_tokens=-1", "got -1; try max_tokens=null for no limit but the context"),
        ("max_tokens=None", "max_tokens=None: must be a valid integer; write null for none"),
        ("allowed_token_ids=[]", "got []; try allowed_token_ids=null to allow all"),
        ("allowed_token_ids=None", "; write null for none"),
        ("bad_words=['']", "got []; try bad_words=[] for no bad words"),
        ("logits_processors=no_repeat_ngram", "as in logits_processors={no_repeat_ngram:{size:3}}"),
    ],
)
def test_advice_is_what_one_writes_here(override: str, expected: str) -> None:
    assert expected in refusal(override)


def test_words_of_python_in_a_users_value_are_left_alone() -> None:
    settings = SamplingSettings(stop=("None; try None", ""))
    with pytest.raises(RequestError, match=r"got \[None; try None,\]; try stop=\[\] for no stop strings"):
        settings.params()


def test_descriptions_are_one_line_each() -> None:
    for name, info in SamplingSettings.model_fields.items():
        assert info.description
        assert "\n" not in info.description, name
