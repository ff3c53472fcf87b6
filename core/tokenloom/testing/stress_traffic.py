"""Random traffic of the stress test: what arrives when, and what befalls each request."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

__all__ = ["StressRequest", "draw_requests"]


@final
@dataclass(frozen=True, slots=True)
class StressRequest:
    """One request and what befalls it. Counts are tokens.

    Attributes:
        step: of its arrival.
        fields: of `Request`, e.g. priority and tenant.
        abort_after: steps from its arrival to its abort.
        cut_after: output tokens at which a stop string ends it.
        fails_at: output tokens at which its row fails.
        loses_swaps: whether its KV never arrives in host memory.
        ends_preempted: whether it is aborted as soon as it waits, preempted.
    """

    step: int
    prompt: tuple[int, ...]
    max_tokens: int
    fields: Mapping[str, Any]
    abort_after: int | None = None
    cut_after: int | None = None
    fails_at: int | None = None
    loses_swaps: bool = False
    ends_preempted: bool = False


def draw_requests(
    rng: random.Random, max_model_len: int, vocab_size: int, *, is_pressing: bool
) -> tuple[StressRequest, ...]:
    """6 to 21 requests and some siblings of theirs; if they press, they come together and grow long."""
    prefixes = [[1000 * i + j if vocab_size > 5 else j % 3 for j in range(24)] for i in range(1, 4)]
    made: list[StressRequest] = []
    step, gap = 0, rng.choice([0.2, 0.5, 1.0] if is_pressing else [0.2, 1.0, 3.0])
    for number in range(rng.randrange(6, 22)):
        step += int(rng.expovariate(1 / gap))
        shared = rng.choice(prefixes)[: rng.choice([0, 0, 4, 9, 9 if is_pressing else 24])]
        own = [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 12))]
        prompt = tuple((shared + own)[: max_model_len + 2])
        request = _draw_request(rng, step, prompt, vocab_size, 8 if is_pressing else 1)
        made.append(request)
        if rng.random() < 0.1:
            pair = f"choices{number}"
            for index, choice in enumerate((made.pop(), _draw_request(rng, step, prompt, vocab_size, 1))):
                fields = {**request.fields, "choice_set": pair, "choice_index": index}
                made.append(StressRequest(step, prompt, choice.max_tokens, fields, choice.abort_after))
    return tuple(made)


def _draw_request(
    rng: random.Random, step: int, prompt: tuple[int, ...], vocab_size: int, fewest_tokens: int
) -> StressRequest:
    def sometimes(share: float, value: Any) -> Any:
        return value if rng.random() < share else None

    fields: dict[str, Any] = {
        "priority": rng.randrange(3),
        "tenant": rng.choice(["", "a", "b"]),
        "ttft_slo_s": sometimes(0.4, rng.uniform(1, 30)),
        "tpot_slo_s": sometimes(0.4, rng.uniform(0.5, 4)),
        "retention_priority": rng.choice([0, 0, 1, 5]),
        "retention_ttl_s": sometimes(0.3, rng.uniform(0, 20)),
        "cache_salt": rng.choice(["", "", "", "salt"]),
        "stop_token_ids": frozenset([rng.randrange(vocab_size)] if vocab_size < 100 and rng.random() < 0.3 else []),
    }
    return StressRequest(
        step=step,
        prompt=prompt,
        max_tokens=rng.randrange(fewest_tokens, 25),
        fields=fields,
        abort_after=sometimes(0.15, rng.randrange(30)),
        cut_after=sometimes(0.1, rng.randrange(1, 12)),
        fails_at=sometimes(0.03, rng.randrange(8)),
        loses_swaps=rng.random() < 0.15,
        ends_preempted=rng.random() < 0.1,
    )
