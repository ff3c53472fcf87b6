"""From token ids and sampling parameters to engine requests, one for each choice."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.clock import Clock
from tokenloom.feasibility import RequestLimits
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.plugins import Registry, default_registry
from tokenloom.request import Request
from tokenloom.request_options import check_token_options, choose_processors
from tokenloom.sampling_fields import MAX_INT32, check_int, checked_float, refusal
from tokenloom.sampling_params import SamplingParams

__all__ = ["RequestFactory", "RequestTraits"]

_MAX_SECONDS = 1e9
"""Of a target or a promise: some thirty years."""


@dataclass(frozen=True, slots=True)
class RequestTraits:
    """What schedulers and caches may know of a request beside its tokens; see `RequestView` for the meaning.

    Raises:
        RequestError: a value is out of range or of another type; its `param` is the field.
    """

    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    retention_priority: int = 0
    retention_ttl_s: float | None = None
    constraint: LogitsConstraint | None = None

    def __post_init__(self) -> None:
        for name in ("priority", "retention_priority"):
            check_int(name, getattr(self, name), -MAX_INT32, MAX_INT32, "0 for an ordinary request")
        for name in ("ttft_slo_s", "tpot_slo_s", "retention_ttl_s"):
            value = getattr(self, name)
            if value is not None:
                checked = checked_float(name, value, 0, _MAX_SECONDS, "0.5, or leave it out", low_is_open=True)
                object.__setattr__(self, name, checked)
        for name in ("tenant", "cache_salt"):
            _check_label(name, getattr(self, name))
        if self.constraint is not None and not isinstance(self.constraint, LogitsConstraint):
            raise refusal("constraint", self.constraint, "a LogitsConstraint or None", "structured_outputs of LLM")


def _check_label(name: str, value: object) -> None:
    """A string that can be digested, and sent to another process."""
    is_text = isinstance(value, str)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            is_text = False
    if not is_text:
        raise refusal(name, value, "a string without lone surrogates", '"" for none')


@final
class RequestFactory:
    """Makes requests for one engine. Ids are unique within it."""

    def __init__(
        self,
        limits: RequestLimits,
        eos_token_ids: tuple[int, ...],
        engine_seed: int,
        clock: Clock,
        registry: Registry | None = None,
    ) -> None:
        """`registry` is where logits processors are looked up; the installed plugins by default."""
        self._registry = registry
        self._limits = limits
        self._eos_token_ids = eos_token_ids
        self._engine_seed = engine_seed
        self._clock = clock
        self._next_number = 0

    def make(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        traits: RequestTraits | None = None,
        bad_words: Sequence[Sequence[int]] = (),
        *,
        request_id: str | None = None,
        arrival_s: float | None = None,
    ) -> list[Request]:
        """One request for each of `params.n` choices. They share prompt and seed; their noise differs by choice index.

        Args:
            prompt_token_ids: what the model sees.
            params: how to sample.
            traits: what policies may know.
            bad_words: token sequences that must not appear: what `params.bad_words` is in tokens.
            request_id: what the caller calls it; of n > 1 choices, the i-th one is called `request_id-i`. None counts.
            arrival_s: when it came, on the engine's clock; None for now. A moment to come is taken for now.

        Raises:
            RequestError: an option names a token id outside the vocabulary or a plugin that does not exist, or the
                options together leave no token to choose.
        """
        traits = traits or RequestTraits()
        # A constraint that has seen the end of its text knows no further position.
        ends_at_eos = not params.ignore_eos or traits.constraint is not None
        stop_ids = frozenset(params.stop_token_ids) | (frozenset(self._eos_token_ids) if ends_at_eos else frozenset())
        check_token_options(params, stop_ids, bad_words, self._limits.vocab_size)
        processors = self._processors(params)
        number = self._next_number
        self._next_number += 1
        max_total = self._most_tokens(len(prompt_token_ids), params.max_tokens)
        name = f"req-{number}" if request_id is None else request_id
        now_s = self._clock.now()
        return [
            Request(
                request_id=name if params.n == 1 else f"{name}-{index}",
                prompt_token_ids=prompt_token_ids,
                params=params,
                seed=self._seed(number) if params.seed is None else params.seed,
                max_total_tokens=max_total,
                choice_index=index,
                choice_set="" if params.n == 1 else name,
                arrival_time_s=now_s if arrival_s is None else min(arrival_s, now_s),
                priority=traits.priority,
                tenant=traits.tenant,
                cache_salt=traits.cache_salt,
                stop_token_ids=stop_ids,
                ttft_slo_s=traits.ttft_slo_s,
                tpot_slo_s=traits.tpot_slo_s,
                retention_priority=traits.retention_priority,
                retention_ttl_s=traits.retention_ttl_s,
                constraint=traits.constraint,
                bad_words=tuple(tuple(word) for word in bad_words),
                logits_processors=processors,
            )
            for index in range(params.n)
        ]

    def _most_tokens(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """Longest that prompt and output of a request may get."""
        longest = self._limits.max_total_tokens
        return longest if max_tokens is None else min(longest, num_prompt_tokens + max_tokens)

    def _processors(self, params: SamplingParams) -> tuple[PluginChoice, ...]:
        if not params.logits_processors:
            return ()
        return choose_processors(params.logits_processors, self._registry or default_registry())

    def _seed(self, number: int) -> int:
        """A seed for the number-th request of an engine: the same for equal engine seeds, whatever else runs."""
        digest = hashlib.sha256(f"{self._engine_seed}/{number}".encode()).digest()
        return int.from_bytes(digest[:8], "little", signed=True)
