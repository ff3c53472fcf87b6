"""From token ids and sampling parameters to engine requests, one for each choice."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import final

from tokenloom.clock import Clock
from tokenloom.errors import RequestError
from tokenloom.feasibility import RequestLimits
from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.request import Request
from tokenloom.sampling_params import SamplingParams

__all__ = ["RequestFactory", "RequestTraits"]


@dataclass(frozen=True, slots=True)
class RequestTraits:
    """What schedulers and caches may know of a request beside its tokens; see `Request` for the meaning."""

    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    retention_priority: int = 0
    retention_ttl_s: float | None = None
    constraint: LogitsConstraint | None = None


@final
class RequestFactory:
    """Makes requests for one engine. Ids are unique within it."""

    def __init__(self, limits: RequestLimits, eos_token_ids: tuple[int, ...], engine_seed: int, clock: Clock) -> None:
        self._limits = limits
        self._eos_token_ids = eos_token_ids
        self._engine_seed = engine_seed
        self._clock = clock
        self._next_number = 0

    def make(
        self, prompt_token_ids: list[int], params: SamplingParams, traits: RequestTraits | None = None
    ) -> list[Request]:
        """One request for each of `params.n` choices. They share prompt and seed; their noise differs by choice index.

        Raises:
            RequestError: a stop token id is outside the vocabulary.
        """
        for token_id in params.stop_token_ids:
            if token_id >= self._limits.vocab_size:
                raise RequestError(
                    f"stop_token_ids: {token_id} is not in the model's vocabulary 0..{self._limits.vocab_size - 1}",
                    "stop_token_ids",
                )
        number = self._next_number
        self._next_number += 1
        traits = traits or RequestTraits()
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else set(self._eos_token_ids))
        max_total = self._limits.max_total_tokens
        if params.max_tokens is not None:
            max_total = min(max_total, len(prompt_token_ids) + params.max_tokens)
        arrival_s = self._clock.now()
        return [
            Request(
                request_id=f"req-{number}" if params.n == 1 else f"req-{number}-{index}",
                prompt_token_ids=prompt_token_ids,
                params=params,
                seed=self._seed(number) if params.seed is None else params.seed,
                max_total_tokens=max_total,
                choice_index=index,
                arrival_time_s=arrival_s,
                priority=traits.priority,
                tenant=traits.tenant,
                cache_salt=traits.cache_salt,
                stop_token_ids=frozenset(stop_ids),
                ttft_slo_s=traits.ttft_slo_s,
                tpot_slo_s=traits.tpot_slo_s,
                retention_priority=traits.retention_priority,
                retention_ttl_s=traits.retention_ttl_s,
                constraint=traits.constraint,
            )
            for index in range(params.n)
        ]

    def _seed(self, number: int) -> int:
        """A seed for the number-th request of an engine: the same for equal engine seeds, whatever else runs."""
        digest = hashlib.sha256(f"{self._engine_seed}/{number}".encode()).digest()
        return int.from_bytes(digest[:8], "little", signed=True)
