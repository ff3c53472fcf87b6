"""What a user asks of sampling: one frozen object per request, checked when it is made.

A value that could harm the engine later (NaN, an absurd count, a bool where a number belongs) is refused here with a
`RequestError` that names the field, so that everything below may trust its numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from tokenloom.errors import RequestError
from tokenloom.sampling_fields import (
    MAX_INT32,
    check_bool,
    check_int,
    checked_biases,
    checked_float,
    checked_processors,
    checked_strings,
    checked_token_ids,
)

__all__ = [
    "MAX_LOGIT_BIAS",
    "MAX_LOGPROBS",
    "MAX_NUM_CHOICES",
    "MAX_PENALTY",
    "MAX_REPETITION_PENALTY",
    "MAX_TEMPERATURE",
    "MIN_REPETITION_PENALTY",
    "MIN_SAMPLING_TEMPERATURE",
    "SamplingParams",
]

MIN_SAMPLING_TEMPERATURE = 1e-6
"""Below this a request is greedy: the most likely token has all the probability that fp32 can tell."""
MAX_TEMPERATURE = 1e6
MIN_REPETITION_PENALTY = 1e-6
"""A smaller divisor would carry ordinary logits out of fp32."""
MAX_REPETITION_PENALTY = 1e6
MAX_PENALTY = 2.0
MAX_LOGIT_BIAS = 100.0
MAX_NUM_CHOICES = 128
MAX_LOGPROBS = 20
_INT64 = (-(2**63), 2**63 - 1)


@final
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    Order of operations, all in fp32::

        raw logits                           -> logprobs, prompt_logprobs
        repetition_penalty, frequency_penalty, presence_penalty
        logit_bias
        logits_processors, in the order given
        allowed_token_ids, bad_words, min_tokens, then the request's logits constraint: what they forbid stays forbidden
        temperature, min_p, top_k, top_p
        one draw with the noise of the position

    Where drafts are verified, each position counts the drafts before it as output: speculation changes no result.

    Attributes:
        temperature: 0 is greedy (the most likely token; among equals the lowest id). Values below
            `MIN_SAMPLING_TEMPERATURE` count as 0.
        top_k: keep the k most likely tokens; -1 or 0 is off (0 is stored as -1).
        top_p: keep the smallest set of most likely tokens whose probabilities sum to at least this; 1 is off.
        min_p: drop tokens less likely than this fraction of the most likely one; 0 is off.
        repetition_penalty: for each token in prompt or output, a positive logit is divided by this and a negative one
            multiplied; above 1 discourages, 1 is off.
        presence_penalty: subtracted from the logit of each token in the output, -2 to 2; 0 is off.
        frequency_penalty: subtracted from a token's logit once for each time it stands in the output, -2 to 2; 0 is
            off.
        logit_bias: token id -> number from -100 to 100 that is added to its logit. It forbids nothing outright.
        allowed_token_ids: only these can be chosen; None allows all.
        bad_words: strings that must not appear, with or without a space before them. The last token of one is forbidden
            where the tokens before it end the output. One string or a list; stored as a tuple. The same text made of
            other tokens is not recognized.
        seed: equal seeds give equal tokens, whatever else runs. None lets the engine pick one.
        n: number of choices for the prompt, each with its own noise.
        max_tokens: most tokens to generate; None generates up to the context limit.
        min_tokens: before this many tokens no end-of-sequence and no stop token id can be chosen.
        stop: strings that end the text. One string or a list is accepted; stored as a tuple.
        stop_token_ids: token ids that end the text; stored as a tuple.
        include_stop_str_in_output: whether the text keeps the stop string that ended it.
        ignore_eos: go on after the end-of-sequence token. Structured output ends there all the same.
        logprobs: None for none; else this many most likely tokens are reported beside the chosen one. Values are the
            log-softmax of the model's own logits, before anything above is applied.
        prompt_logprobs: the same for each token of the prompt but the first, given the tokens before it. Such a request
            computes its whole prompt, whatever the prefix cache holds.
        logits_processors: plugins of kind `logits_processor` by name, each with its settings, e.g.
            {"no_repeat_ngram": {"size": 3}}.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        RequestError: a value is of the wrong type or out of range; its `param` is the attribute's name.
    """

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logits_processors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._check_distribution()
        self._check_penalties()
        self._check_tokens()
        self._check_lengths()
        if self.seed is not None:
            check_int("seed", self.seed, *_INT64, "None for a seed chosen by the engine")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 0, MAX_LOGPROBS, f"None for no {name}")
        self._store("logits_processors", checked_processors("logits_processors", self.logits_processors))
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            check_bool(name, getattr(self, name))

    def _store(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_distribution(self) -> None:
        advice = "0 for greedy, 0.7 to 1 for varied text"
        self._store("temperature", checked_float("temperature", self.temperature, 0.0, MAX_TEMPERATURE, advice))
        self._store("top_p", checked_float("top_p", self.top_p, 0.0, 1.0, "1 to keep every token", low_is_open=True))
        self._store("min_p", checked_float("min_p", self.min_p, 0.0, 1.0, "0 to keep every token"))
        check_int("top_k", self.top_k, -1, MAX_INT32, "-1 to keep every token")
        self._store("top_k", self.top_k if self.top_k > 0 else -1)

    def _check_penalties(self) -> None:
        limits = (MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        advice = "1 for no penalty, 1.05 to 1.3 against repetition"
        self._store("repetition_penalty", checked_float("repetition_penalty", self.repetition_penalty, *limits, advice))
        for name in ("presence_penalty", "frequency_penalty"):
            self._store(name, checked_float(name, getattr(self, name), -MAX_PENALTY, MAX_PENALTY, "0 for no penalty"))

    def _check_tokens(self) -> None:
        self._store("logit_bias", checked_biases("logit_bias", self.logit_bias, MAX_LOGIT_BIAS))
        if self.allowed_token_ids is not None:
            ids = checked_token_ids(
                "allowed_token_ids", self.allowed_token_ids, "None to allow all", may_be_empty=False
            )
            self._store("allowed_token_ids", ids)
        self._store("bad_words", checked_strings("bad_words", self.bad_words, "() for no bad words"))
        self._store("stop", checked_strings("stop", self.stop, "() for no stop strings"))
        stop_ids = checked_token_ids("stop_token_ids", self.stop_token_ids, "() for no stop token ids")
        self._store("stop_token_ids", stop_ids)

    def _check_lengths(self) -> None:
        check_int("n", self.n, 1, MAX_NUM_CHOICES, "several requests for more choices")
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 1, MAX_INT32, "None for no limit but the context")
        check_int("min_tokens", self.min_tokens, 0, MAX_INT32, "0 for no minimum")
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

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on how often tokens stand in prompt and output."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def with_changes(self, **changes: Any) -> SamplingParams:
        """Returns a copy with some fields replaced, checked again (`dataclasses.replace`)."""
        return dataclasses.replace(self, **changes)
