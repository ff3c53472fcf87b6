"""As many drafts as pay: by how often a request's drafts are accepted, and by what a draft costs at this batch size.

With a draft accepted with probability a, k drafts yield (1 - a^(k+1)) / (1 - a) tokens, and take 1 + c k plain steps,
where c is the price of one draft for each running request. k is chosen to make the quotient largest, as if all requests
were alike; where it is not above 1, k is 0. Source of the formula: Leviathan et al., "Fast Inference from Transformers
via Speculative Decoding" (2023), section 3.3.

What is not tried is not known. So now and then those that draft nothing try a single draft, as often as a small share
of the time allows; and those that draft run a plain step, to compare with.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.draft_policy import (
    DraftPolicy,
    DraftPolicyConfig,
    DraftPolicyContext,
    DraftStep,
    VerifiedDrafts,
)
from tokenloom.request import RequestView
from tokenloom_spec_decode.adaptive_costs import DraftCosts

__all__ = ["AcceptanceRates", "AdaptivePolicy", "AdaptivePolicyConfig", "best_length"]

_FIRST_PROBE_STEPS, _LEAST_PROBE_STEPS, _LEAST_PLAIN_STEPS = 12, 4, 32
"""Steps until the first probe; from one to the next, and from one plain step to the next, at least."""
_POOL_DECAY, _OWN_DECAY = 0.97, 0.95
"""What older proposals count against the next one: over all requests, and of one request."""
_POOL_WEIGHT = 6.0
"""Drafts of a request's own that weigh as much as what all requests have shown."""
_RATE_STEPS, _PRICE_STEPS = 64, 32
"""Rates and prices are rounded before a length is chosen, so that most choices are known already."""


@final
class AdaptivePolicyConfig(DraftPolicyConfig):
    """Settings of `spec_decode/policy=adaptive`."""

    max_draft_tokens: Annotated[int, Field(ge=1, le=64)] = Field(
        default=8, description="Most tokens to propose for a request in a step."
    )
    min_gain: Annotated[float, Field(ge=0.0)] = Field(
        default=0.02, description="Drafting must promise so much more speed, as a share, or it is left off."
    )
    probe_share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.01, description="Share of the time to spend on drafts that are not expected to pay, to find out."
    )

    def build(self, context: DraftPolicyContext) -> AdaptivePolicy:
        return AdaptivePolicy(self, context.max_num_seqs)


@final
class AcceptanceRates:
    """How often drafts are accepted if those before them are: of each request, and of all as where to start from."""

    def __init__(self, max_requests: int) -> None:
        """`max_requests`: most requests to remember; those that drafted longest ago are dropped first."""
        self._max_requests = max_requests
        self._pool = _Counts(1.0, 1.0)
        self._own: OrderedDict[str, _Counts] = OrderedDict()
        self.depth_share = 1.0
        """Depth of a proposal for each of its drafts: 1 for chains, less for trees."""

    def observe(self, verified: Sequence[VerifiedDrafts]) -> None:
        """Takes outcomes into account."""
        for drafts in verified:
            accepted = drafts.num_accepted_tokens
            missed = 1 if accepted < drafts.max_depth else 0
            self._pool.add(accepted, missed, _POOL_DECAY)
            self._own.setdefault(drafts.request_id, _Counts(0.0, 0.0)).add(accepted, missed, _OWN_DECAY)
            self._own.move_to_end(drafts.request_id)
            share = drafts.max_depth / drafts.num_drafts
            self.depth_share = _POOL_DECAY * self.depth_share + (1 - _POOL_DECAY) * share
        while len(self._own) > self._max_requests:
            self._own.popitem(last=False)

    def of(self, request_id: str) -> float:
        """The rate of a request, between 0 and 1."""
        pool = self._pool.accepted / (self._pool.accepted + self._pool.missed)
        own = self._own.get(request_id)
        if own is None:
            return pool
        return (own.accepted + _POOL_WEIGHT * pool) / (own.accepted + own.missed + _POOL_WEIGHT)

    def forget(self, request_id: str) -> None:
        """Drops a request."""
        self._own.pop(request_id, None)


@final
@dataclass(slots=True)
class _Counts:
    accepted: float
    missed: float

    def add(self, accepted: int, missed: int, decay: float) -> None:
        self.accepted = self.accepted * decay + accepted
        self.missed = self.missed * decay + missed


class _Turn(Enum):
    """What the coming step is for."""

    GAIN = auto()
    PLAIN = auto()
    PROBE = auto()


@final
class AdaptivePolicy(DraftPolicy):
    """Learns from every step; asked the same twice, it gives the same answer."""

    def __init__(self, config: AdaptivePolicyConfig, max_num_seqs: int) -> None:
        self._config = config
        self._costs = DraftCosts()
        # A request may be told of after it was forgotten, and a preempted one comes back.
        self._rates = AcceptanceRates(4 * max_num_seqs)
        self._turn = _Turn.PLAIN
        self._num_since_plain = 0
        self._num_since_probe = 0
        self._probe_cost: float | None = None

    def num_drafts(self, request: RequestView, num_running: int) -> int:
        if self._turn is _Turn.PLAIN:
            return 0
        rates, config = self._rates, self._config
        best = best_length(
            round(rates.of(request.request_id) * _RATE_STEPS) / _RATE_STEPS,
            _rounded(self._costs.price(num_running)),
            round(rates.depth_share, 1),
            config.max_draft_tokens,
            config.min_gain,
        )
        return 1 if best == 0 and self._turn is _Turn.PROBE else best

    def observe(self, verified: Sequence[VerifiedDrafts], duration_s: float) -> None:
        """A step of which only this is known: taken as one in which each request ran one token of its own."""
        num_drafts = sum(drafts.num_drafts for drafts in verified)
        self.observe_step(DraftStep(verified, duration_s, len(verified), len(verified), num_drafts, 0.0))

    def observe_step(self, step: DraftStep) -> None:
        self._costs.observe(step)
        self._rates.observe(step.verified)
        self._turn = self._next_turn(step)

    def forget(self, request_id: str) -> None:
        self._rates.forget(request_id)

    def _next_turn(self, step: DraftStep) -> _Turn:
        """What the next step is for. A plain step is asked for once; a probe until something was proposed."""
        self._num_since_plain += 1
        self._num_since_probe += 1
        price = self._costs.price(step.num_rows)
        if self._turn is _Turn.PROBE:
            if not step.num_proposed:
                return _Turn.PROBE
            self._num_since_probe = 0
            self._probe_cost = price * step.num_proposed / max(1, step.num_rows)
        if self._num_since_plain >= _LEAST_PLAIN_STEPS and self._costs.wants_plain(step.num_rows):
            self._num_since_plain = 0
            return _Turn.PLAIN
        # Drafts that fail lengthen a step by their price. The first probe comes soon: its price is a guess.
        least = _FIRST_PROBE_STEPS if self._probe_cost is None else _LEAST_PROBE_STEPS
        cost = 0.0 if self._probe_cost is None else min(price, self._probe_cost)
        if self._num_since_probe >= max(least, math.ceil(cost / self._config.probe_share)):
            return _Turn.PROBE
        return _Turn.GAIN


@lru_cache(maxsize=4096)
def best_length(rate: float, price: float, depth_share: float, max_drafts: int, min_gain: float) -> int:
    """The number of drafts that makes a request fastest.

    Args:
        rate: how often a draft is accepted if those before it are, 0..1.
        price: what one draft for each running request costs, in plain steps.
        depth_share: depth of a proposal for each of its drafts.
        max_drafts: most that may be chosen.
        min_gain: the speed must grow by more than this share.

    Returns:
        0 where drafting does not pay.
    """
    best, best_speed = 0, 1.0 + min_gain
    for count in range(1, max_drafts + 1):
        depth = count * depth_share
        num_tokens = depth + 1.0 if rate >= 1.0 else (1.0 - rate ** (depth + 1.0)) / (1.0 - rate)
        speed = num_tokens / (1.0 + price * count)
        if speed > best_speed:
            best, best_speed = count, speed
    return best


def _rounded(price: float) -> float:
    """A price rounded to a grid of some 3 %, but never to nothing."""
    if price < 0.001:
        return 0.0
    return math.exp(round(math.log(price) * _PRICE_STEPS) / _PRICE_STEPS)
