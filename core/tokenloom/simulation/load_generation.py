"""Generated load: arrivals of a Poisson or a burstier process, lengths around a mean, prefixes that requests share."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from tokenloom.simulation.timed_request import MOST_TOKENS, TimedRequest

__all__ = ["LoadShape", "generate_load"]


@dataclass(frozen=True, slots=True)
class LoadShape:
    """What to generate.

    Attributes:
        rate: mean arrivals per second; None lets all arrive at once.
        burstiness: shape of the gamma distribution of the time between arrivals. 1 is a Poisson process, less is
            burstier (coefficient of variation 1 / sqrt(burstiness)), more is steadier.
        prompt_tokens: mean length of what a request shares with nobody, at least 1.
        output_tokens: mean output, at least 1.
        length_spread: coefficient of variation of both lengths (log-normal, cut at MOST_TOKENS); 0 makes all alike.
        shared_prefix_tokens: length of the prefix that stands before it.
        num_prefixes: different prefixes; each request draws one.
    """

    rate: float | None = None
    burstiness: float = 1.0
    prompt_tokens: int = 512
    output_tokens: int = 128
    length_spread: float = 0.0
    shared_prefix_tokens: int = 0
    num_prefixes: int = 1


def generate_load(shape: LoadShape, num_requests: int, seed: int) -> list[TimedRequest]:
    """Requests in order of arrival, the first one at 0. Equal arguments give equal requests."""
    # One stream for each property: another length must not move the arrivals.
    gaps, prompts, outputs, prefixes = (random.Random(f"{seed}/{name}") for name in ("gap", "in", "out", "prefix"))
    requests: list[TimedRequest] = []
    arrival_s = 0.0
    for number in range(num_requests):
        if shape.rate is not None and number:
            arrival_s += gaps.gammavariate(shape.burstiness, 1.0 / (shape.rate * shape.burstiness))
        prefix = prefixes.randrange(shape.num_prefixes)
        requests.append(
            TimedRequest(
                arrival_s=arrival_s,
                num_prompt_tokens=shape.shared_prefix_tokens
                + _length(prompts, shape.prompt_tokens, shape.length_spread),
                num_output_tokens=_length(outputs, shape.output_tokens, shape.length_spread),
                shared_ids=(prefix,) if shape.shared_prefix_tokens else (),
                shared_block_tokens=max(1, shape.shared_prefix_tokens),
            )
        )
    return requests


def _length(draw: random.Random, mean: int, spread: float) -> int:
    if spread == 0.0:
        return mean
    sigma = math.sqrt(math.log1p(spread**2))
    return max(1, min(MOST_TOKENS, round(draw.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))))
