"""What a user asks of sampling: one frozen object per request, checked when it is made.

A value that could harm the engine later (NaN, an absurd count, a bool where a number belongs) is refused here with a
`RequestError` that names the field, so that everything below may trust its numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from tokenloom.errors import RequestError

__all__ = ["MAX_LOGPROBS", "MAX_NUM_CHOICES", "MAX_TEMPERATURE", "MIN_SAMPLING_TEMPERATURE", "SamplingParams"]

MIN_SAMPLING_TEMPERATURE = 1e-6
"""Below this a request is greedy: the most likely token has all the probability that fp32 can tell."""
MAX_TEMPERATURE = 1e6
MAX_NUM_CHOICES = 128
MAX_LOGPROBS = 20
_MAX_INT32 = 2**31 - 1
_INT64 = (-(2**63), 2**63 - 1)


@final
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    Order of operations, all in fp32: temperature, min_p, top_k, top_p; then one draw with the noise of the position.

    Attributes:
        temperature: 0 is greedy (the most likely token; among equals the lowest id). Values below
            `MIN_SAMPLING_TEMPERATURE` count as 0.
        top_k: keep the k most likely tokens; -1 or 0 is off (0 is stored as -1).
        top_p: keep the smallest set of most likely tokens whose probabilities sum to at least this; 1 is off.
        min_p: drop tokens less likely than this fraction of the most likely one; 0 is off.
        seed: equal seeds give equal tokens, whatever else runs. None lets the engine pick one.
        n: number of choices for the prompt, each with its own noise.
        max_tokens: most tokens to generate; None generates up to the context limit.
        min_tokens: before this many tokens no end-of-sequence and no stop token id can be chosen.
        stop: strings that end the text. One string or a list is accepted; stored as a tuple.
        stop_token_ids: token ids that end the text; stored as a tuple.
        include_stop_str_in_output: whether the text keeps the stop string that ended it.
        ignore_eos: go on after the end-of-sequence token.
        logprobs: None for none; else this many most likely tokens are reported beside the chosen one. Values are the
            log-softmax of the model's own logits, before anything above is applied.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        RequestError: a value is of the wrong type or out of range; its `param` is the attribute's name.
    """

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._check_distribution()
        self._check_lengths()
        if self.seed is not None:
            _check_int("seed", self.seed, *_INT64, "None for a seed chosen by the engine")
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS, "None for no logprobs")
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _stop_token_ids(self.stop_token_ids))
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            _check_bool(name, getattr(self, name))

    def _check_distribution(self) -> None:
        advice = "0 for greedy, 0.7 to 1 for varied text"
        temperature = _checked_float("temperature", self.temperature, 0.0, MAX_TEMPERATURE, advice)
        top_p = _checked_float("top_p", self.top_p, 0.0, 1.0, "1 to keep every token", low_is_open=True)
        min_p = _checked_float("min_p", self.min_p, 0.0, 1.0, "0 to keep every token")
        _check_int("top_k", self.top_k, -1, _MAX_INT32, "-1 to keep every token")
        object.__setattr__(self, "temperature", temperature)
        object.__setattr__(self, "top_p", top_p)
        object.__setattr__(self, "min_p", min_p)
        object.__setattr__(self, "top_k", self.top_k if self.top_k > 0 else -1)

    def _check_lengths(self) -> None:
        _check_int("n", self.n, 1, MAX_NUM_CHOICES, "several requests for more choices")
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, _MAX_INT32, "None for no limit but the context")
        _check_int("min_tokens", self.min_tokens, 0, _MAX_INT32, "0 for no minimum")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must not exceed max_tokens={self.max_tokens}, got {self.min_tokens}; "
                f"try max_tokens={self.min_tokens} or more",
                param="min_tokens",
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always chosen, so that no noise is drawn."""
        return self.temperature < MIN_SAMPLING_TEMPERATURE or self.top_k == 1

    def with_changes(self, **changes: Any) -> SamplingParams:
        """Returns a copy with some fields replaced, checked again (`dataclasses.replace`)."""
        return dataclasses.replace(self, **changes)


def _refuse(name: str, value: object, allowed: str, advice: str) -> RequestError:
    return RequestError(f"{name} must be {allowed}, got {value!r}; try {advice}", param=name)


def _checked_float(
    name: str, value: object, low: float, high: float, advice: str, *, low_is_open: bool = False
) -> float:
    allowed = f"a finite number {'above' if low_is_open else 'from'} {low:g} {'up ' if low_is_open else ''}to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refuse(name, value, allowed, advice)
    # NaN fails every comparison, infinities every range; an int too large for a float is refused before conversion.
    if not low <= value <= high or (low_is_open and value == low):
        raise _refuse(name, value, allowed, advice)
    return float(value)


def _check_int(name: str, value: object, low: int, high: int, advice: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _refuse(name, value, f"an integer from {low} to {high}", advice)


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _refuse(name, value, "True or False", "True or False without quotes")


def _stop_strings(value: object) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    is_legal = isinstance(strings, tuple | list) and all(isinstance(item, str) and item for item in strings)
    if not is_legal:
        raise _refuse("stop", value, "a non-empty string or a list of them", "() for no stop strings")
    assert isinstance(strings, tuple | list), f"stop is {strings!r} after its check"
    return tuple(strings)


def _stop_token_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple | list):
        raise _refuse("stop_token_ids", value, "a list of token ids", "() for no stop token ids")
    for token_id in value:
        _check_int("stop_token_ids", token_id, 0, _MAX_INT32, "ids of the model's own vocabulary")
    return tuple(value)
