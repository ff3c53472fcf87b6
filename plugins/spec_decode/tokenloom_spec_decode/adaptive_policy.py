"""As many drafts as pay: by how often a request's drafts are accepted, and by what a draft costs at this batch size.

With a first draft accepted with probability b, and each later one with a if those before it are, k drafts yield
1 + b (1 - a^k) / (1 - a) tokens, and take 1 + c k plain steps, where c is the price of one draft for each running
request. k is chosen to make the quotient largest, as if all requests were alike; where it is not above 1, k is 0. With
b = a that is the formula of Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023),
section 3.3; but whoever finds a text repeated is surer of its second token than of the first one.

What is not tried is not known. So now and then those that draft nothing try a single draft, as often as a small share
of the time allows; and those that draft run a plain step, to compare with. What is expected need not come: where steps
with drafts turn out to lose time, `adaptive_account` leaves them off.
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
from tokenloom_spec_decode.adaptive_costs import DraftCosts, typical_size

__all__ = ["AcceptanceRates", "AdaptivePolicy", "AdaptivePolicyConfig", "best_length"]

_FIRST_PROBE_STEPS, _LEAST_PROBE_STEPS, _LEAST_PLAIN_STEPS = 12, 4, 32
"""Steps until the first probe; from one to the next, and from one plain step to the next, at least."""
_MOST_PATIENCE = 4  # so many times as long at most
_POOL_DECAY, _OWN_DECAY = 0.97, 0.95
"""What older proposals count against the next one: over all requests, and of one request."""
_POOL_WEIGHT = 6.0
"""Drafts of a request's own that weigh as much as what all requests have shown."""
_LEAST_PRICE = 0.001
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
        default=0.005, description="Share of the time to spend on drafts that are not expected to pay, to find out."
    )

    def build(self, context: DraftPolicyContext) -> AdaptivePolicy:
        return AdaptivePolicy(self, context.max_num_seqs)


@final
@dataclass(frozen=True, slots=True)
class Rates:
    """How often the first draft of a proposal is accepted, and how often a later one if those before it are, 0..1."""

    first: float
    later: float


@final
class AcceptanceRates:
    """How often drafts are accepted: of each request, and of all as where to start from."""

    def __init__(self, max_requests: int) -> None:
        """`max_requests`: most requests to remember; those that drafted longest ago are dropped first."""
        self._max_requests = max_requests
        self._pool = _Outcomes(_Counts(1.0, 1.0), _Counts(1.0, 1.0))
        self._own: OrderedDict[str, _Outcomes] = OrderedDict()
        self.depth_share = 1.0
        """Depth of a proposal for each of its drafts: 1 for chains, less for trees."""

    def observe(self, verified: Sequence[VerifiedDrafts]) -> None:
        """Takes outcomes into account."""
        for drafts in verified:
            self._pool.add(drafts, _POOL_DECAY)
            own = self._own.setdefault(drafts.request_id, _Outcomes(_Counts(0.0, 0.0), _Counts(0.0, 0.0)))
            own.add(drafts, _OWN_DECAY)
            self._own.move_to_end(drafts.request_id)
            share = drafts.max_depth / drafts.num_drafts
            self.depth_share = _POOL_DECAY * self.depth_share + (1 - _POOL_DECAY) * share
        while len(self._own) > self._max_requests:
            self._own.popitem(last=False)

    def of(self, request_id: str) -> Rates:
        """The rates of a request."""
        pool, own = self._pool, self._own.get(request_id)
        first, later = pool.first.rate, pool.later.rate
        if own is None:
            return Rates(first, later)
        return Rates(own.first.rate_beside(first), own.later.rate_beside(later))

    def forget(self, request_id: str) -> None:
        """Drops a request."""
        self._own.pop(request_id, None)


@final
@dataclass(slots=True)
class _Counts:
    accepted: float
    missed: float

    @property
    def rate(self) -> float:
        return self.accepted / (self.accepted + self.missed)

    def rate_beside(self, pool: float) -> float:
        """The rate where little is known: mostly the pool's."""
        return (self.accepted + _POOL_WEIGHT * pool) / (self.accepted + self.missed + _POOL_WEIGHT)

    def add(self, accepted: int, missed: int, decay: float) -> None:
        self.accepted = self.accepted * decay + accepted
        self.missed = self.missed * decay + missed


@final
@dataclass(slots=True)
class _Outcomes:
    """Of first drafts, and of those behind an accepted one."""

    first: _Counts
    later: _Counts

    def add(self, drafts: VerifiedDrafts, decay: float) -> None:
        accepted = drafts.num_accepted_tokens
        if accepted == 0:
            self.first.add(0, 1, decay)
            return
        self.first.add(1, 0, decay)
        if drafts.max_depth > 1:
            self.later.add(accepted - 1, 1 if accepted < drafts.max_depth else 0, decay)


@final
@dataclass(frozen=True, slots=True)
class _Probe:
    """What the last probe took, and so when the next one may come.

    Attributes:
        asking: time of looking for drafts, as a share of the step's.
        drafts: proposed for each request; they will lengthen the next step by their price.
        least_steps: until the next one, whatever it costs.
    """

    asking: float
    drafts: float
    least_steps: int

    @staticmethod
    def seen_in(step: DraftStep) -> _Probe:
        asking = step.draft_s / step.duration_s if step.duration_s > 0.0 else 0.0
        drafts = step.num_proposed / max(1, step.num_rows)
        return _Probe(asking, drafts, _LEAST_PROBE_STEPS if step.num_proposed else 0)


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
        # Answers by batch size and request since something was learnt last: while nothing is drafted, all of them stay.
        self._chosen: dict[int, dict[str, int]] = {}
        self._most_chosen = 16 * max_num_seqs
        self._wanting: set[str] = set()  # requests of which one was above 0
        self._turn = self._turn_before = _Turn.PLAIN
        """What the coming step is for, and what the one before it was: whose proposals are verified now."""
        self._num_since_plain = 0
        self._num_since_probe = 0
        self._patience = 1
        """Probes come so many times more seldom: twice as seldom after each that has changed nothing."""
        # The first one comes soon: what it would cost is a guess.
        self._probe = _Probe(0.0, 0.0, _FIRST_PROBE_STEPS)

    def num_drafts(self, request: RequestView, num_running: int) -> int:
        if self._turn is _Turn.PLAIN:
            return 0
        request_id, num_rows = request.request_id, typical_size(num_running)
        chosen = self._chosen.setdefault(num_rows, {})
        best = chosen.get(request_id)
        if best is None:
            best = chosen[request_id] = self._best(request_id, num_rows)
            self._wanting.update([request_id] if best else ())
        return 1 if best == 0 and self._turn is _Turn.PROBE else best

    def _best(self, request_id: str, num_rows: int) -> int:
        if not self._costs.is_paying(num_rows):
            return 0
        rates, config = self._rates.of(request_id), self._config
        return best_length(
            Rates(round(rates.first * _RATE_STEPS) / _RATE_STEPS, round(rates.later * _RATE_STEPS) / _RATE_STEPS),
            _rounded(self._costs.price(num_rows)),
            round(self._rates.depth_share, 1),
            min(config.max_draft_tokens, self._costs.longest_trial(num_rows)),
            config.min_gain,
        )

    def observe(self, verified: Sequence[VerifiedDrafts], duration_s: float) -> None:
        """A step of which only this is known: taken as one in which each request ran one token of its own."""
        num_drafts = sum(drafts.num_drafts for drafts in verified)
        self.observe_step(DraftStep(verified, duration_s, len(verified), len(verified), num_drafts, 0.0))

    def observe_step(self, step: DraftStep) -> None:
        # A drafter with KV of its own takes time in every step: without drafts, that is no loss by drafting.
        is_asked = bool(step.verified) or bool(self._wanting)
        is_for_gain = is_asked and _Turn.PROBE not in (self._turn, self._turn_before)
        if is_for_gain and step.verified:
            self._patience = 1
        tells = self._costs.observe(step, is_for_gain=is_for_gain)
        self._rates.observe(step.verified)
        if tells or step.verified or sum(map(len, self._chosen.values())) > self._most_chosen:
            self._chosen.clear()
            self._wanting.clear()
        self._turn_before, self._turn = self._turn, self._next_turn(step)

    def forget(self, request_id: str) -> None:
        self._rates.forget(request_id)
        self._wanting.discard(request_id)
        for chosen in self._chosen.values():
            chosen.pop(request_id, None)

    def _next_turn(self, step: DraftStep) -> _Turn:
        """What the next step is for. A plain step is asked for once; a probe until something was proposed, as often as
        the time that looking in vain takes allows."""
        self._num_since_plain += 1
        self._num_since_probe += 1
        if self._turn is _Turn.PROBE:
            self._num_since_probe = 0
            self._probe = _Probe.seen_in(step)
            self._patience = min(_MOST_PATIENCE, 2 * self._patience)
        if self._num_since_plain >= _LEAST_PLAIN_STEPS and self._costs.wants_plain(step.num_rows):
            self._num_since_plain = 0
            return _Turn.PLAIN
        if self._num_since_probe >= self._steps_between_probes(step.num_rows):
            return _Turn.PROBE
        return _Turn.GAIN

    def _steps_between_probes(self, num_rows: int) -> int:
        if self._costs.would_learn(num_rows, self._probe.drafts):
            return _FIRST_PROBE_STEPS
        price = self._costs.price(num_rows, at_most_guess=self._patience < _MOST_PATIENCE)
        cost = self._probe.asking + self._probe.drafts * price
        return self._patience * max(self._probe.least_steps, math.ceil(cost / self._config.probe_share))


@lru_cache(maxsize=16384)
def best_length(rates: Rates, price: float, depth_share: float, max_drafts: int, min_gain: float) -> int:
    """The number of drafts that makes a request fastest.

    Args:
        rates: how often drafts are accepted.
        price: what one draft for each running request costs, in plain steps.
        depth_share: depth of a proposal for each of its drafts.
        max_drafts: most that may be chosen.
        min_gain: the speed must grow by more than this share.

    Returns:
        0 where drafting does not pay.
    """
    best, best_speed, later = 0, 1.0 + min_gain, rates.later
    for count in range(1, max_drafts + 1):
        depth = count * depth_share
        num_accepted = rates.first * (depth if later >= 1.0 else (1.0 - later**depth) / (1.0 - later))
        speed = (1.0 + num_accepted) / (1.0 + price * count)
        if speed > best_speed:
            best, best_speed = count, speed
    return best


def _rounded(price: float) -> float:
    """A price rounded to a grid of some 3 %, but never to nothing: no draft is free, whatever noise has measured."""
    return math.exp(round(math.log(max(price, _LEAST_PRICE)) * _PRICE_STEPS) / _PRICE_STEPS)
