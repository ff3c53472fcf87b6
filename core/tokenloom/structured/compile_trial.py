"""Compiles a grammar in a child process first, which a limit of CPU time ends: the library has none."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import final

from tokenloom.errors import RequestError, TokenloomError
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.structured.compiler import compiled_constraint
from tokenloom.structured.vocabulary import TokenVocabulary

__all__ = ["CompileTrial", "serve_trials"]

_LIMIT_S = 1.0
"""Large grammars of the ordinary kind take a tenth of it."""
_MAX_KEPT = 16
_COMMAND = "from tokenloom.structured.compile_trial import serve_trials; serve_trials()"
_DONE = b"\n"


@final
class CompileTrial:
    """One child, started when it is first needed, and again after its end. Safe to share between threads."""

    def __init__(self, limit_s: float = _LIMIT_S) -> None:
        """`limit_s`: CPU time that compiling may take."""
        self._limit_s = limit_s
        self._child: subprocess.Popen[bytes] | None = None
        self._digest = ""
        self._refusals: dict[GrammarSpec, str] = {}  # one request may bring the same grammar for each of its prompts
        self._is_closed = False
        self._lock = threading.Lock()

    def check(self, spec: GrammarSpec, vocabulary: TokenVocabulary) -> None:
        """Returns if compiling ends by itself, whether `spec` is right or wrong.

        Raises:
            RequestError: it takes too long, or breaks the process that it runs in.
        """
        if spec.kind == "json_object":
            return
        with self._lock:
            refusal = self._refusals.get(spec)
            if refusal is None:
                child = self._ready_child(vocabulary)
                if _answers(child, spec):
                    return
                refusal = self._refusals[spec] = self._refusal(spec, self._end())
                if len(self._refusals) > _MAX_KEPT:
                    del self._refusals[next(iter(self._refusals))]
        raise RequestError(refusal)

    def close(self) -> None:
        """Ends the child, and with it a check that waits for it; idempotent."""
        self._is_closed = True
        child = self._child
        if child is not None:
            child.kill()
        with self._lock:
            self._end()

    def _refusal(self, spec: GrammarSpec, exit_code: int | None) -> str:
        if exit_code == -signal.SIGPROF:
            return (
                f"the {spec.kind} costs too much: compiling it takes more than the {self._limit_s:g} s of CPU time "
                "that are allowed; make it smaller, with fewer patterns that must match at once"
            )
        return f"the {spec.kind} cannot be used: compiling it broke off (exit code {exit_code}); make it smaller"

    def _ready_child(self, vocabulary: TokenVocabulary) -> subprocess.Popen[bytes]:
        child = self._child
        if child is not None and child.poll() is None and self._digest == vocabulary.digest:
            return child
        self._end()
        if self._is_closed:
            raise TokenloomError("no grammar is compiled any more: the engine ends")
        paths = os.pathsep.join(path for path in sys.path if path)
        child = self._child = subprocess.Popen(
            [sys.executable, "-P", "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is not its business; it ends when its input does.
        )
        self._digest = vocabulary.digest
        if not _answers(child, (vocabulary, self._limit_s)):
            raise TokenloomError(f"the process that tries grammars did not start (exit code {self._end()})")
        return child

    def _end(self) -> int | None:
        """The child's exit code, if there was one."""
        child, self._child = self._child, None
        if child is None:
            return None
        with suppress(BrokenPipeError), child:  # closes its pipes, and waits for it
            pass
        return child.returncode


def serve_trials() -> None:
    """What the child does, until its input ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    vocabulary, limit_s = pickle.load(sys.stdin.buffer)
    while True:
        os.write(1, _DONE)
        try:
            spec = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        # Its signal ends the process in the middle of native code, too.
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        with suppress(RequestError):  # whoever asked compiles it again, and sees
            compiled_constraint(spec, vocabulary)
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _answers(child: subprocess.Popen[bytes], message: object) -> bool:
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(pickle.dumps(message))
        child.stdin.flush()
    except BrokenPipeError:
        return False
    return child.stdout.read(1) == _DONE
