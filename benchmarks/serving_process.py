"""Starts `tokenloom serve` for a benchmark, and ends it with all its processes."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Serving", "serving"]

_START_TIMEOUT_S = 300.0
_END_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that runs: its base URL, and the process that its other processes are children of."""

    base_url: str
    process: psutil.Process

    def processes(self) -> list[psutil.Process]:
        """All that are alive."""
        return [self.process, *self.process.children(recursive=True)]

    def rss_bytes(self) -> int:
        """Resident memory of all of them."""
        return int(self._sum(lambda process: process.memory_info().rss))

    def cpu_s(self) -> float:
        """CPU time that all of them have taken."""
        return self._sum(lambda process: process.cpu_times().user + process.cpu_times().system)

    def _sum(self, value_of: Callable[[psutil.Process], float]) -> float:
        total = 0.0
        for process in self.processes():
            try:
                total += value_of(process)
            except psutil.NoSuchProcess:
                continue  # it ended since it was listed
        return total


@contextmanager
def serving(overrides: Sequence[str]) -> Iterator[Serving]:
    """Runs a server on a free port while the block lasts; its output goes to stderr.

    Raises:
        RuntimeError: it ended instead of becoming ready.
    """
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    # The command lies beside the interpreter that runs the benchmark.
    command = [str(Path(sys.executable).with_name("tokenloom")), "serve", f"server.port={port}", *overrides]
    child = subprocess.Popen(command, stdout=sys.stderr)
    server = Serving(f"http://127.0.0.1:{port}", psutil.Process(child.pid))
    everything = [server.process]
    try:
        _wait_until_ready(server.base_url, child)
        everything = server.processes()
        yield server
    finally:
        everything = [*everything, *(server.processes() if server.process.is_running() else [])]
        child.terminate()
        try:
            child.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
        for process in everything:
            if process.is_running() and process.pid != child.pid:
                process.kill()


def _wait_until_ready(base_url: str, child: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if child.poll() is not None:
            raise RuntimeError(f"the server ended with code {child.returncode} before it was ready")
        try:
            with urllib.request.urlopen(f"{base_url}/ready", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass  # not yet
        time.sleep(0.2)
    raise RuntimeError(f"the server was not ready within {_START_TIMEOUT_S:g} s")
