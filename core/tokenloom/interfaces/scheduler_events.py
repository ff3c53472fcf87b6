"""Part of contract `scheduler` 1.2: what a scheduler is told after a commit; only this may change its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenloom.batch import PreemptMode
from tokenloom.request import FinishReason, RequestView

__all__ = ["RequestArrived", "RequestFinished", "RequestPreempted", "SchedulerEvent", "StepLanded"]


@dataclass(frozen=True, slots=True)
class SchedulerEvent:
    """Base of what a scheduler is told after a commit. `now_s` is the clock, seconds."""

    now_s: float


@dataclass(frozen=True, slots=True)
class RequestArrived(SchedulerEvent):
    """A request was accepted and waits."""

    request: RequestView


@dataclass(frozen=True, slots=True)
class RequestPreempted(SchedulerEvent):
    """A request lost its memory, but for `num_kept_tokens`, and waits again."""

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
