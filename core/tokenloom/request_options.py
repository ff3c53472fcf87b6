"""Sampling options against the model and the registry: what `SamplingParams` alone cannot know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from tokenloom.errors import ConfigError, PluginError, RequestError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.logits_processor import LogitsProcessorConfig
from tokenloom.plugins import Registry
from tokenloom.sampling_params import SamplingParams
from tokenloom.settings_validation import validated

__all__ = ["check_token_options", "choose_processors"]

_KIND = "logits_processor"
_PARAM = "logits_processors"


def check_token_options(
    params: SamplingParams, stop_ids: frozenset[int], bad_words: Sequence[Sequence[int]], vocab_size: int
) -> None:
    """Refuses token ids that the model does not have, and options that together leave no token.

    Args:
        params: of the request.
        stop_ids: all token ids that end it.
        bad_words: token sequences that must not appear.
        vocab_size: V; ids are below it.

    Raises:
        RequestError: its `param` is the option at fault.
    """
    if params.bad_words and not bad_words:
        raise RequestError(
            f"bad_words {list(params.bad_words)} are strings, and no tokens were given for them; "
            "pass the token ids of each word beside the parameters",
            "bad_words",
        )
    _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    _check_ids("logit_bias", params.logit_bias, vocab_size)
    _check_ids("bad_words", (token_id for word in bad_words for token_id in word), vocab_size)
    if any(len(word) == 0 for word in bad_words):
        raise RequestError("bad_words: a sequence without tokens forbids nothing; leave it out", "bad_words")
    if params.allowed_token_ids is not None or bad_words or params.min_tokens > 0:
        _check_token_is_left(params, stop_ids, bad_words, vocab_size)


def choose_processors(wanted: Mapping[str, Mapping[str, Any]], registry: Registry) -> tuple[PluginChoice, ...]:
    """Looks logits processors up by name and validates their settings, in the order given.

    Raises:
        RequestError: no plugin has the name, it cannot be used, or its settings are wrong.
    """
    return tuple(_choose(name, settings, registry) for name, settings in wanted.items())


def _check_ids(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{name}: {token_id} is not in the model's vocabulary 0..{vocab_size - 1}; try ids of this model", name
            )


def _check_token_is_left(
    params: SamplingParams, stop_ids: frozenset[int], bad_words: Sequence[Sequence[int]], vocab_size: int
) -> None:
    """What can be known before a token exists: later ones may still run into a dead end, which ends with an error."""
    bad_ids = {word[0] for word in bad_words if len(word) == 1}
    allowed = params.allowed_token_ids

    def num_left(forbidden: Set[int]) -> int:
        return vocab_size - len(forbidden) if allowed is None else len(set(allowed) - forbidden)

    if num_left(bad_ids) == 0:
        source = "the vocabulary" if allowed is None else "allowed_token_ids"
        raise RequestError(
            f"no token is left to choose: bad_words forbid every token of {source}; try fewer bad words", "bad_words"
        )
    if params.min_tokens > 0 and num_left(bad_ids | stop_ids) == 0:
        raise RequestError(
            f"no token is left to choose: before min_tokens={params.min_tokens} the stop tokens are forbidden, and "
            f"allowed_token_ids and bad_words leave no other; try min_tokens=0, or allow a token that does not stop",
            "min_tokens",
        )


def _choose(name: str, settings: Mapping[str, Any], registry: Registry) -> PluginChoice:
    try:
        config_class = registry.load_config_class(_KIND, name)
    except (ConfigError, PluginError) as error:
        raise RequestError(f"{_PARAM}: {error}", _PARAM) from error
    if not issubclass(config_class, LogitsProcessorConfig):
        raise RequestError(f"{_PARAM}: {_KIND}={name}: its Config is no LogitsProcessorConfig", _PARAM)
    try:
        config = validated(config_class, settings, name)
    except ConfigError as error:
        raise RequestError(f"{_PARAM}: {error}", _PARAM) from error
    return PluginChoice(_KIND, name, config)
