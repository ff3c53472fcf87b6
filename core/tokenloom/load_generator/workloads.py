"""What is asked for: generated requests, or those of a file, with arrivals of their own or drawn ones."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from tokenloom.simulation.load_generation import LoadShape, generate_load
from tokenloom.simulation.request_mix import RequestMix, mix_requests
from tokenloom.simulation.timed_request import TimedRequest, scale_arrivals

__all__ = ["FileWorkload", "GeneratedWorkload", "PlannedRequest", "Workload"]

_SEGMENT = 256
"""Requests of an endless workload that are made at a time; more would hold the event loop up."""
_SEGMENT_SEEDS = 1_000_003


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request before it has a body: arrival, lengths, what it shares; and its prompt, where that is text."""

    timed: TimedRequest
    text: str | None = None


class Workload(ABC):
    """Requests in order of arrival."""

    @abstractmethod
    def requests(self, seed: int) -> Iterator[PlannedRequest]:
        """The requests. Equal seeds give equal ones."""

    @property
    @abstractmethod
    def num_requests(self) -> int | None:
        """How many there are; None if they do not end."""


@final
@dataclass(frozen=True, slots=True)
class GeneratedWorkload(Workload):
    """Generated requests.

    Attributes:
        shape: lengths, shared prefixes, and arrivals.
        mix: priorities and targets.
        count: how many; None for ever, with arrivals of no meaning.
    """

    shape: LoadShape
    mix: RequestMix
    count: int | None

    @property
    def num_requests(self) -> int | None:
        return self.count

    def requests(self, seed: int) -> Iterator[PlannedRequest]:
        if self.count is not None:
            yield from self._some(self.count, seed)
            return
        for number in itertools.count():
            yield from self._some(_SEGMENT, seed + _SEGMENT_SEEDS * number)

    def _some(self, count: int, seed: int) -> Iterator[PlannedRequest]:
        return map(PlannedRequest, mix_requests(generate_load(self.shape, count, seed), self.mix, seed))


@final
@dataclass(frozen=True, slots=True)
class FileWorkload(Workload):
    """Requests of a file.

    Attributes:
        planned: what the file holds.
        mix: priorities and targets.
        rate: mean arrivals per second; None leaves them as they are.
        burstiness: of drawn arrivals, see `LoadShape`; None stretches those of the file to `rate` instead.
    """

    planned: Sequence[PlannedRequest]
    mix: RequestMix
    rate: float | None = None
    burstiness: float | None = None

    @property
    def num_requests(self) -> int | None:
        return len(self.planned)

    def requests(self, seed: int) -> Iterator[PlannedRequest]:
        timed = [request.timed for request in self.planned]
        if self.burstiness is not None:
            drawn = generate_load(LoadShape(self.rate, self.burstiness), len(timed), seed)
            timed = [replace(own, arrival_s=other.arrival_s) for own, other in zip(timed, drawn, strict=True)]
        elif self.rate is not None:
            timed = scale_arrivals(timed, self.rate)
        mixed = mix_requests(timed, self.mix, seed)
        return (replace(planned, timed=own) for planned, own in zip(self.planned, mixed, strict=True))
