"""One engine in its own interpreter, asleep while another one is measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

__all__ = ["Answer", "PeerProcess", "PeerSpec", "Place"]

_WORKERS = Path(__file__).parent / "peers"
_END_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """An engine to be measured: a name for the tables, the worker, the interpreter, and settings of its own."""

    label: str
    worker: str
    python: str
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """One run of a workload."""

    wall_s: float
    token_ids: list[list[int]]


@dataclass(frozen=True, slots=True)
class Place:
    """One position of a window of text, the likeliest token there, and the log-probability of the one that is there.

    None stands for what the engine did not tell.
    """

    position: int
    likeliest: int | None
    logprob: float | None


@final
class PeerProcess:
    """A worker, stopped by SIGSTOP whenever it has no work: threads that wait would take CPU time from the others."""

    def __init__(self, spec: PeerSpec, settings: dict[str, Any]) -> None:
        """
        Raises:
            RuntimeError: the engine did not load; its own message is on stderr.
        """
        self.spec = spec
        self._settings = {**settings, "extra": list(spec.extra)}
        self.num_starts = 0
        self._start()

    def _start(self) -> None:
        command = [self.spec.python, str(_WORKERS / f"{self.spec.worker}_peer.py"), json.dumps(self._settings)]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        loaded = self._read()
        self.name: str = loaded["name"]
        self.version: str = loaded["version"]
        self.load_s: float = loaded["load_s"]
        self._can_reset: bool = loaded["can_reset"]
        self.num_starts += 1
        self._signal(signal.SIGSTOP)

    def run(self, items: Sequence[dict[str, Any]], warm_up: Sequence[dict[str, Any]]) -> Answer:
        """Runs a workload on a cold prefix cache; an engine that cannot empty its cache is started and warmed anew."""
        if not self._can_reset and self.num_starts > 0:
            self.close()
            self._start()
            self._ask({"items": list(warm_up)})
        answer = self._ask({"items": list(items)})
        return Answer(answer["wall_s"], answer["token_ids"])

    def score(self, windows: Sequence[Sequence[int]]) -> list[list[Place]]:
        """What the engine says of given text, see `peers/peer_worker.py`; empty where it says nothing."""
        told = self._ask({"windows": [list(ids) for ids in windows]})["scores"]
        return [[Place(*place) for place in places] for places in told]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        self._signal(signal.SIGCONT)
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        answer = self._read()
        self._signal(signal.SIGSTOP)
        return answer

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError(f"{self.spec.label} ended with code {self._child.returncode}; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _signal(self, number: int) -> None:
        os.killpg(self._child.pid, number)

    def close(self) -> None:
        """Ends the engine and all that it started."""
        # It may have ended by itself, and all that it started.
        with suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self._child.wait(_END_TIMEOUT_S)
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()
