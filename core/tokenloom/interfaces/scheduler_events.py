"""Part of contract `scheduler` 1.3: what a scheduler is told after a commit; only this may change its state.

    RequestArrived --> waits --- RequestAdmitted --> runs
                         ^                            |
                         '----- RequestPreempted -----'         RequestFinished from either

What a policy keeps has to follow from where an event leaves a request, and not from how many events there were: a
preemption may be told again of a request that waits. `tokenloom.scheduling.WaitingOrder` keeps those that wait. A minor
version may add events; ignore those that you do not know. From 1.3 on, admissions are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenloom.batch import PreemptMode
from tokenloom.request import FinishReason, RequestView

__all__ = [
    "RequestAdmitted",
    "RequestArrived",
    "RequestFinished",
    "RequestPreempted",
    "SchedulerEvent",
    "StepLanded",
]


@dataclass(frozen=True, slots=True)
class SchedulerEvent:
    """Base of what a scheduler is told after a commit. `now_s` is the clock, seconds."""

    now_s: float


@dataclass(frozen=True, slots=True)
class RequestArrived(SchedulerEvent):
    """A request was accepted and waits."""

    request: RequestView


@dataclass(frozen=True, slots=True)
class RequestAdmitted(SchedulerEvent):
    """A request that waited, new or preempted, got a slot and runs."""

    request: RequestView


@dataclass(frozen=True, slots=True)
class RequestPreempted(SchedulerEvent):
    """A request lost its memory, but for `num_kept_tokens`, and waits again, as PREEMPTED or SWAPPED.

    Told again, with `num_preemptions` as before, when one that waits loses some of what it had kept.
    """

    request: RequestView
    mode: PreemptMode = PreemptMode.RECOMPUTE
    num_kept_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestFinished(SchedulerEvent):
    """A request ended; it is in no view from now on."""

    request: RequestView
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class StepLanded(SchedulerEvent):
    """A step landed.

    Attributes:
        step_id: which.
        duration_s: from launch to landing.
        num_tokens: new tokens it computed.
        num_emitted: tokens emitted, request_id -> count.
    """

    step_id: int
    duration_s: float
    num_tokens: int
    num_emitted: Mapping[str, int]
