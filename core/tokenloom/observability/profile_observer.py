"""Profiles a served engine: the operations that start a recording and fetch it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from tokenloom.engine import Engine
from tokenloom.engine_output import EngineOutput
from tokenloom.engine_process.loop_observer import LoopObserver
from tokenloom.engine_process.messages import Refused
from tokenloom.engine_process.operations import Operations
from tokenloom.errors import PluginContractError, RequestError
from tokenloom.observability.chrome_trace import chrome_trace
from tokenloom.observability.timeline import MAX_RECORDED_STEPS, StepTimeline
from tokenloom.request import Request

__all__ = ["ProfileObserver"]


@final
class ProfileObserver(LoopObserver):
    """Drives a timeline that the engine was built with."""

    def __init__(self, engine: Engine, timeline: StepTimeline, facts: Mapping[str, Any]) -> None:
        """`facts` stand beside the events of each trace."""
        self._engine = engine
        self._timeline = timeline
        self._facts = facts
        self._number = 0

    def accepted(self, requests: Sequence[Request]) -> None:
        pass

    def refused(self, refused: Refused) -> None:
        pass

    def stepped(self, outputs: Sequence[EngineOutput]) -> None:  # noqa: ARG002
        self._timeline.end_step(self._engine)

    def ended(self, output: EngineOutput) -> None:
        pass

    def plan_failed(self, error: PluginContractError) -> None:
        pass

    def operations(self) -> Operations:
        """
        profile_start: records the next `steps` steps, and forgets what was recorded before; the profile's number.
        profile_take: of the profile `number`, a Chrome trace of the steps so far; with `only_done`, None before it is
            done.
        """
        return {"profile_start": self._start, "profile_take": self._take}

    def _start(self, arguments: Mapping[str, Any]) -> int:
        steps = arguments.get("steps")
        if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= MAX_RECORDED_STEPS:
            raise RequestError(f"steps={steps!r:.80} must be a whole number from 1 to {MAX_RECORDED_STEPS}", "steps")
        self._timeline.start(steps)
        self._number += 1
        return self._number

    def _take(self, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        number = arguments.get("number")
        if number != self._number or not number:
            raise RequestError(f"profile {number!r:.80} is not there; another one took its place", "number")
        if self._timeline.is_recording and arguments.get("only_done"):
            return None
        return chrome_trace(self._timeline.steps, self._facts)
