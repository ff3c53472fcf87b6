"""Options against model and registry: what can never run is refused with what to try."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from pydantic import Field

from tokenloom.clock import VirtualClock
from tokenloom.errors import RequestError
from tokenloom.feasibility import RequestLimits
from tokenloom.interfaces.contract import PluginInfo
from tokenloom.interfaces.logits_processor import LogitsProcessor, LogitsProcessorConfig, LogitsProcessorContext
from tokenloom.plugins import Registry, hookimpl
from tokenloom.request_factory import RequestFactory
from tokenloom.request_options import check_token_options, choose_processors
from tokenloom.sampling_params import SamplingParams

VOCAB = 10


class ListedConfig(LogitsProcessorConfig):
    """Settings of several types."""

    size: int = Field(ge=1)
    words: tuple[str, ...] = ()

    def build(self, context: LogitsProcessorContext) -> LogitsProcessor:
        raise NotImplementedError


@pytest.fixture(scope="module")
def registry() -> Registry:
    """Three plugins: a good one, one of a later contract, one whose module does not exist."""

    @hookimpl
    def tokenloom_plugins() -> list[PluginInfo]:
        kind = "logits_processor"
        return [
            PluginInfo(kind, "listed", f"{__name__}:ListedConfig", (1, 0), ""),
            PluginInfo(kind, "future", f"{__name__}:ListedConfig", (2, 0), ""),
            PluginInfo(kind, "missing", "no_module_of_this_name:Config", (1, 0), ""),
        ]

    module = ModuleType("option_plugins")
    module.tokenloom_plugins = tokenloom_plugins  # type: ignore[attr-defined]
    return Registry.from_modules([module])


def refusal(
    params: SamplingParams, stop_ids: Sequence[int] = (), bad_words: Sequence[Sequence[int]] = ()
) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_token_options(params, frozenset(stop_ids), bad_words, VOCAB)
    return caught.value


@pytest.mark.parametrize("token_id", [VOCAB, 2**31 - 1])
@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_ids_are_those_of_the_models_vocabulary(name: str, token_id: int) -> None:
    value: Any = {1: 1.0, token_id: 1.0} if name == "logit_bias" else [1, token_id]
    error = refusal(SamplingParams(**{name: value}))
    assert error.param == name
    assert str(error).startswith(f"{name}: {token_id} is not in the model's vocabulary 0..9")


@pytest.mark.parametrize("bad_words", [[[3], [VOCAB]], [[-1]], [[1, 2, VOCAB]], [[]]])
def test_bad_words_are_tokens_of_the_model(bad_words: list[list[int]]) -> None:
    assert refusal(SamplingParams(), bad_words=bad_words).param == "bad_words"


def test_strings_without_their_tokens_are_not_ignored() -> None:
    error = refusal(SamplingParams(bad_words=["foo"]))
    assert error.param == "bad_words"
    assert "no tokens were given" in str(error)


@pytest.mark.parametrize(
    ("params", "stop_ids", "bad_words", "param"),
    [
        ({"allowed_token_ids": [3, 4]}, [], [[3], [4], [4, 5]], "bad_words"),
        ({}, [], [[token_id] for token_id in range(VOCAB)], "bad_words"),
        ({"allowed_token_ids": [3, 4, 4], "min_tokens": 1}, [3, 4], [], "min_tokens"),
        ({"allowed_token_ids": [3, 4], "min_tokens": 1}, [3], [[4]], "min_tokens"),
        ({"min_tokens": 1}, range(VOCAB), [], "min_tokens"),
        ({"min_tokens": 1}, range(5), [[token_id] for token_id in range(4, VOCAB)], "min_tokens"),
    ],
)
def test_combinations_that_leave_no_token_are_refused(
    params: dict[str, Any], stop_ids: Sequence[int], bad_words: list[list[int]], param: str
) -> None:
    error = refusal(SamplingParams(**params), stop_ids, bad_words)
    assert error.param == param
    assert str(error).startswith("no token is left to choose")
    assert "; try " in str(error)


@pytest.mark.parametrize(
    ("params", "stop_ids", "bad_words"),
    [
        ({"allowed_token_ids": [3, 4]}, [3, 4], [[3], [4, 4]]),
        ({"allowed_token_ids": [3, 4], "min_tokens": 1}, [3], [[4, 4]]),
        ({"allowed_token_ids": [3]}, [3], []),
        ({"min_tokens": 1}, range(VOCAB - 1), []),
        ({"logit_bias": dict.fromkeys(range(VOCAB), -100)}, [], []),
        ({"bad_words": ["x"]}, [], [[token_id] for token_id in range(VOCAB - 1)]),
    ],
)
def test_combinations_that_leave_one_token_run(
    params: dict[str, Any], stop_ids: Sequence[int], bad_words: list[list[int]]
) -> None:
    check_token_options(SamplingParams(**params), frozenset(stop_ids), bad_words, VOCAB)


def test_factory_checks_with_all_stop_ids_and_hands_everything_on() -> None:
    factory = RequestFactory(RequestLimits(32, 32, VOCAB), (9,), 0, VirtualClock())
    params = SamplingParams(allowed_token_ids=[8, 9], stop_token_ids=[8], min_tokens=2, n=2)
    with pytest.raises(RequestError, match="min_tokens=2"):
        factory.make([1], params)
    with pytest.raises(RequestError, match="no tokens were given"):
        factory.make([1], SamplingParams(bad_words="x"))
    wanted = {"no_repeat_ngram": {"size": 3}}
    requests = factory.make(
        [1], params.with_changes(ignore_eos=True, logits_processors=wanted), bad_words=[[4], [5, 6]]
    )
    assert [request.bad_words for request in requests] == [((4,), (5, 6))] * 2
    assert [choice.name for choice in requests[1].logits_processors] == ["no_repeat_ngram"]


# ---- logits processors ----


def test_processors_keep_their_order_and_get_validated_settings(registry: Registry) -> None:
    (choice,) = choose_processors({"listed": {"size": 2, "words": ["a", "b"]}}, registry)
    assert (choice.kind, choice.name) == ("logits_processor", "listed")
    assert choice.config == ListedConfig(size=2, words=("a", "b"))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("listd", {"size": 2}, "no such logits_processor; choose one of listed, missing. Did you mean 'listed'?"),
        ("future", {"size": 2}, "this core speaks 1.0"),
        ("missing", {}, "No module named 'no_module_of_this_name'"),
        ("listed", {}, "the setting 'size' must be given"),
        ("listed", {"size": 2, "word": []}, "there is no setting 'word', only size, words. Did you mean 'words'?"),
        ("listed", {"size": 0}, "size: must be greater than or equal to 1, got 0"),
        ("listed", {"size": True}, "size: must be a valid integer, got True"),
        ("listed", {"size": "2"}, "size: must be a valid integer, got '2'"),
        ("listed", {"size": 2, "words": [1]}, "words.0: must be a valid string, got 1"),
    ],
)
def test_wrong_processors_are_refused_by_name(
    registry: Registry, name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        choose_processors({name: settings}, registry)
    assert caught.value.param == "logits_processors"
    assert str(caught.value).startswith("logits_processors: ")
    assert message in str(caught.value)
