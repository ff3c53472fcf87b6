"""The submissions that an engine loop has taken in: who sent each, and which of its choices run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import final

from tokenloom.engine_output import EngineOutput
from tokenloom.engine_process.fault import fault_of
from tokenloom.engine_process.loop_observer import LoopObserver
from tokenloom.engine_process.messages import GRAMMAR_PARAM, Refused, Submit, Truncate
from tokenloom.engine_process.served_engine import ServedEngine
from tokenloom.errors import PluginContractError, RequestError
from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.request_factory import RequestTraits

__all__ = ["Submissions"]

_log = logging.getLogger(__name__)
_COMPILING_POLL_S = 0.002
_SHORT_WAIT_S = 0.002
"""What a step may be late for grammars that are ready at once, because they were compiled before."""


@dataclass(slots=True)
class _Submission:
    """One that runs: whose it is, and the request ids of its choices that have not ended."""

    request_id: str
    front_end: str
    choices: set[str]


@final
class Submissions:
    """Adds, aborts and truncates in the engine. Ids belong to the front end that brought them."""

    def __init__(self, served: ServedEngine, observers: Sequence[LoopObserver]) -> None:
        self._engine = served.engine
        self._factory = served.factory
        self._grammars = served.grammars
        self._observers = observers
        self._running: dict[str, _Submission] = {}
        self._of_choice: dict[str, _Submission] = {}
        self._compiling: dict[str, tuple[str, Submit, Future[LogitsConstraint]]] = {}
        self._is_behind = False

    def __len__(self) -> int:
        """Choices that run."""
        return len(self._of_choice)

    @property
    def patience_s(self) -> float | None:
        """How long an idle loop may wait for messages; None: there is no limit."""
        return _COMPILING_POLL_S if self._compiling else None

    def add(self, front_end: str, submit: Submit) -> Refused | None:
        """Takes a submission in, all its choices, or says why not. One with a grammar starts when that is ready."""
        if submit.request_id in self._running or submit.request_id in self._compiling:
            message = f"request_id {submit.request_id!r} is in use; choose another one"
            return self._refuse(submit.request_id, RequestError(message, "request_id"))
        if submit.grammar is None:
            return self._start(front_end, submit)
        compiling = self._grammars.start(submit.grammar)
        self._compiling[submit.request_id] = (front_end, submit, compiling)
        return None

    def take_compiled(self) -> Iterator[tuple[str, Refused]]:
        """Starts the submissions whose grammar is ready; yields those that are refused, with their front ends."""
        if self._compiling and not self._is_behind:
            wait([entry[2] for entry in self._compiling.values()], timeout=_SHORT_WAIT_S)
        ready = [entry for entry in self._compiling.values() if entry[2].done()]
        # Those to come are compiled behind what is still left: to wait for them would delay every step.
        self._is_behind = len(ready) < len(self._compiling)
        for front_end, submit, compiled in ready:
            del self._compiling[submit.request_id]
            error = compiled.exception()
            if error is None:
                traits = replace(submit.traits, constraint=compiled.result())
                refused = self._start(front_end, submit, traits)
            else:
                refused = self._refuse(submit.request_id, error, GRAMMAR_PARAM)
            if refused is not None:
                yield front_end, refused

    def abort(self, front_end: str, request_id: str) -> None:
        """Ends a submission of this front end now; unknown ids, and those of others, are ignored."""
        compiling = self._compiling.get(request_id)
        if compiling is not None and compiling[0] == front_end:
            compiling[2].cancel()
            del self._compiling[request_id]
        submission = self._running.get(request_id)
        if submission is not None and submission.front_end == front_end:
            self._end(submission)

    def abort_all(self, front_end: str) -> None:
        """Ends everything that a front end has submitted."""
        compiling = [request_id for request_id, entry in self._compiling.items() if entry[0] == front_end]
        running = [entry.request_id for entry in self._running.values() if entry.front_end == front_end]
        for request_id in (*compiling, *running):
            self.abort(front_end, request_id)

    def truncate(self, front_end: str, message: Truncate) -> None:
        """Ends a choice of this front end at a stop string; ignored once it has ended."""
        submission = self._of_choice.get(message.request_id)
        if submission is None or submission.front_end != front_end:
            return
        try:
            output = self._engine.truncate(message.request_id, message.num_output_tokens, message.stop_reason)
        except PluginContractError:
            # A scheduler that has missed an event: the engine cannot go on, as after an abort.
            raise
        # A front end that counts wrong must not end the others' streams.
        except Exception:  # noqa: BLE001
            _log.exception("%s cannot be cut", message.request_id)
            output = self._engine.abort(message.request_id)
        self._note_end(message.request_id, output)

    def sort(self, outputs: Sequence[EngineOutput]) -> dict[str, list[EngineOutput]]:
        """The outputs of a step by front end, in order; forgets the choices that have ended."""
        news: dict[str, list[EngineOutput]] = {}
        for output in outputs:
            submission = self._of_choice[output.request_id]
            news.setdefault(submission.front_end, []).append(output)
            if output.finish_reason is not None:
                self._forget(output.request_id)
        return news

    def abort_engine(self) -> list[EngineOutput]:
        """Ends every request in the engine; returns the last output of each, which must still be sorted."""
        ended = [self._engine.abort(request_id) for request_id in self._of_choice]
        return [output for output in ended if output is not None]

    def close(self) -> None:
        """Ends the compiling; idempotent."""
        self._grammars.close()

    def _start(self, front_end: str, submit: Submit, traits: RequestTraits | None = None) -> Refused | None:
        try:
            requests = self._factory.make(
                submit.prompt_token_ids,
                submit.params,
                submit.traits if traits is None else traits,
                submit.bad_words,
                request_id=submit.request_id,
                arrival_s=submit.arrival_s,
            )
            self._engine.add_requests(requests)
        # Whatever is wrong with one submission must not end the others' streams.
        except Exception as error:  # noqa: BLE001
            return self._refuse(submit.request_id, error)
        submission = _Submission(submit.request_id, front_end, {request.request_id for request in requests})
        self._running[submit.request_id] = submission
        self._of_choice.update(dict.fromkeys(submission.choices, submission))
        for observer in self._observers:
            observer.accepted(requests)
        return None

    def _refuse(self, request_id: str, error: BaseException, param: str | None = None) -> Refused:
        fault = fault_of(error, param)
        if fault.kind == "internal":
            _log.error("submission %s failed", request_id, exc_info=error)
        refused = Refused(request_id, fault)
        for observer in self._observers:
            observer.refused(refused)
        return refused

    def _end(self, submission: _Submission) -> None:
        for request_id in sorted(submission.choices):
            self._note_end(request_id, self._engine.abort(request_id))

    def _note_end(self, request_id: str, output: EngineOutput | None) -> None:
        assert output is not None, f"{request_id} had ended before"
        self._forget(request_id)
        for observer in self._observers:
            observer.ended(output)

    def _forget(self, request_id: str) -> None:
        submission = self._of_choice.pop(request_id)
        submission.choices.discard(request_id)
        if not submission.choices:
            del self._running[submission.request_id]
