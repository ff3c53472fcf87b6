"""Child processes of the supervisor: signals are not their business, and they die with their parent."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import NoReturn

from tokenloom.server.log_lines import log_to_stderr

__all__ = ["begin_child", "describe_exit", "end_child", "start_child"]

_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
"""Ctrl-C reaches every process of a terminal, but how the server ends is up to the supervisor alone."""

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_context = multiprocessing.get_context("spawn")


def start_child(target: Callable[..., None], *args: object, name: str) -> BaseProcess:
    """Starts a process. Signals that come meanwhile wait, so that none hits a child that is not prepared."""
    process = _context.Process(target=target, args=args, name=name)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return process


def describe_exit(process: BaseProcess) -> str:
    """How a process that has ended did so, e.g. "killed by SIGKILL"."""
    code = process.exitcode
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def begin_child(name: str, log_level: str) -> None:
    """Call it first in a child.

    Args:
        name: what `ps` and `top` show where they can; 15 characters at most.
        log_level: a name of module logging, in any case.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # The supervisor blocks them while it starts a child, which inherits that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    _die_with_parent()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
    log_to_stderr(log_level)


def end_child(exit_code: int) -> NoReturn:
    """Ends a child that has closed what it held: taking the interpreter and torch apart would take seconds."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _die_with_parent() -> None:
    """No child outlives its supervisor, even where that is killed: Linux sees to it, elsewhere a thread does."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "begin_child() was called in no child"
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    # Also where Linux does it: the parent may have died before it was asked.
    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
