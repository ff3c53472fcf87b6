"""Compiles the structured output that requests ask for, beside the running steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import final

from tokenloom.grammar_spec import GrammarSpec
from tokenloom.interfaces.logits import LogitsConstraint

__all__ = ["GrammarThread"]


@final
class GrammarThread:
    """One thread that compiles grammars for one model."""

    def __init__(
        self, compile_spec: Callable[[GrammarSpec], LogitsConstraint], interrupt: Callable[[], None] | None = None
    ) -> None:
        """`compile_spec` raises RequestError for a grammar that is none; `interrupt` ends what that waits for."""
        self._compile_spec = compile_spec
        self._interrupt = interrupt
        self._thread: ThreadPoolExecutor | None = None

    def start(self, spec: GrammarSpec) -> Future[LogitsConstraint]:
        """Compiles it behind those that were begun before."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenloom-grammars")
        return self._thread.submit(self._compile_spec, spec)

    def close(self) -> None:
        """Ends the thread after what it is at; idempotent."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None
            if self._interrupt is not None:
                self._interrupt()
