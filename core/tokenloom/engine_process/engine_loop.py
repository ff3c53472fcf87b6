"""Runs an engine for its front ends: takes what has arrived, steps, sends each front end its news; waits when idle."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import final

from tokenloom.engine_output import EngineOutput
from tokenloom.engine_process.fault import Fault, fault_of
from tokenloom.engine_process.heartbeat import Heartbeat
from tokenloom.engine_process.link import EngineLink
from tokenloom.engine_process.loop_observer import LoopObserver
from tokenloom.engine_process.messages import (
    Abort,
    Call,
    EngineInfo,
    Failed,
    FrontEndGone,
    Hello,
    Outputs,
    Reply,
    Stop,
    Submit,
    ToEngine,
    Truncate,
)
from tokenloom.engine_process.operations import Operations, engine_operations
from tokenloom.engine_process.served_engine import ServedEngine
from tokenloom.engine_process.submissions import Submissions
from tokenloom.errors import EngineDeadError, PluginContractError, TokenloomError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.request import FinishReason

__all__ = ["EngineLoop"]

_log = logging.getLogger(__name__)
_MAX_GONE = 1000
"""Names of dead front ends that are remembered: what one of them had sent cannot stay under way for so many deaths."""


@final
class EngineLoop:
    """One turn: every message that waits, then one step, then one message to each front end that has news.

    Operations of `Call`: see `engine_operations`, and what the observers add.
    """

    def __init__(
        self,
        served: ServedEngine,
        link: EngineLink,
        *,
        heartbeat: Heartbeat | None = None,
        observers: Sequence[LoopObserver] = (),
        fallback: PluginChoice | None = None,
    ) -> None:
        """
        Args:
            served: the engine.
            link: to the front ends.
            heartbeat: shows a supervisor that turns end.
            observers: hear what happens, for metrics.
            fallback: scheduler that takes over from one whose plan is illegal; None keeps that one.
        """
        self._engine = served.engine
        self._info = served.info
        self._link = link
        self._heartbeat = Heartbeat.unshared() if heartbeat is None else heartbeat
        self._observers = tuple(observers)
        self._fallback = fallback
        self._submissions = Submissions(served, self._observers)
        self._operations: Operations = engine_operations(served)
        for observer in self._observers:
            self._operations |= observer.operations()
        self._front_ends: dict[str, None] = {}
        self._gone: dict[str, None] = {}
        self._is_stopping = False

    @property
    def info(self) -> EngineInfo:
        """What front ends must know."""
        return self._info

    def run(self) -> None:
        """Serves until a `Stop` comes.

        Raises:
            EngineDeadError: the engine cannot go on; every front end has been told.
        """
        try:
            while not self._is_stopping:
                self._turn()
        except BaseException as error:
            _log.critical("the engine stops", exc_info=error)
            self._tell_failure(error)
            if isinstance(error, EngineDeadError) or not isinstance(error, Exception):
                raise
            raise EngineDeadError(fault_of(error).message) from error
        finally:
            self._submissions.close()
            self._link.close()

    def _turn(self) -> None:
        timeout_s = 0.0 if self._engine.has_work() else self._submissions.patience_s
        messages = self._link.receive(self._heartbeat.period_s if timeout_s is None else timeout_s)
        self._heartbeat.beat()
        for front_end, message in messages:
            self._handle(front_end, message)
        for front_end, refused in self._submissions.take_compiled():
            self._link.send(front_end, refused)
        if self._engine.has_work():
            self._step()

    # ---- messages ----

    def _handle(self, front_end: str, message: ToEngine) -> None:
        if front_end in self._gone:
            return
        match message:
            case Submit():
                refused = self._submissions.add(front_end, message)
                if refused is not None:
                    self._link.send(front_end, refused)
            case Abort():
                for request_id in message.request_ids:
                    self._submissions.abort(front_end, request_id)
            case Truncate():
                self._submissions.truncate(front_end, message)
            case Call():
                self._link.send(front_end, self._answer(message))
            case Hello():
                self._front_ends[front_end] = None
                self._link.send(front_end, self._info)
            case FrontEndGone():
                self._forget(message.front_end)
            case Stop():
                self._is_stopping = True
        self._require_alive()

    def _forget(self, front_end: str) -> None:
        """Ends what a dead front end had submitted. What it had sent before may still come: links keep no order among
        senders."""
        self._front_ends.pop(front_end, None)
        self._submissions.abort_all(front_end)
        self._gone[front_end] = None
        if len(self._gone) > _MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def _answer(self, call: Call) -> Reply:
        operation = self._operations.get(call.operation)
        if operation is None:
            known = ", ".join(sorted(self._operations))
            message = f"the engine has no operation {call.operation!r}, only {known}"
            return Reply(call.call_id, fault=Fault("internal", message))
        try:
            return Reply(call.call_id, operation(call.arguments))
        # Whatever is wrong with one question must not end the others' streams.
        except Exception as error:  # noqa: BLE001
            if not isinstance(error, TokenloomError):
                _log.exception("operation %s failed", call.operation)
            return Reply(call.call_id, fault=fault_of(error))

    # ---- steps ----

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except PluginContractError as error:
            self._require_alive(error)
            self._fail_live(error)
            return
        for observer in self._observers:
            observer.stepped(outputs)
        self._send_outputs(outputs)

    def _send_outputs(self, outputs: Sequence[EngineOutput]) -> None:
        for front_end, news in self._submissions.sort(outputs).items():
            self._link.send(front_end, Outputs(news))

    def _fail_live(self, error: PluginContractError) -> None:
        """A plan was illegal and nothing of it was carried out: whoever may be its cause ends, the engine goes on."""
        _log.error("%s; %d requests fail", error, len(self._submissions))
        failed = [
            replace(output, finish_reason=FinishReason.ERROR, error=str(error))
            for output in self._submissions.abort_engine()
        ]
        for observer in self._observers:
            observer.plan_failed(error)
            for output in failed:
                observer.ended(output)
        self._send_outputs(failed)
        if self._fallback is not None:
            _log.error("scheduler=%s takes over", self._fallback.name)
            self._engine.replace_scheduler(self._fallback)

    def _require_alive(self, cause: TokenloomError | None = None) -> None:
        if not self._engine.is_alive:
            raise EngineDeadError("the engine stopped" if cause is None else str(cause)) from cause

    def _tell_failure(self, error: BaseException) -> None:
        for front_end in self._front_ends:
            self._link.send(front_end, Failed(fault_of(error).message))
