"""A served engine without a model, and links whose messages a test writes and reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar, final

from tokenloom.engine_process.grammars import GrammarThread
from tokenloom.engine_process.heartbeat import Heartbeat
from tokenloom.engine_process.link import EngineLink, FrontEndLink
from tokenloom.engine_process.messages import (
    EngineInfo,
    FromEngine,
    Stop,
    Submit,
    ToEngine,
)
from tokenloom.engine_process.served_engine import ServedEngine
from tokenloom.errors import RequestError
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.request_factory import RequestFactory, RequestTraits
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.engine_harness import EngineHarness

__all__ = ["IDLE_S", "INFO", "FakeFrontEndLink", "ScriptedLink", "of_kind", "stub_served", "submission"]

INFO = EngineInfo(
    model_path="nowhere",
    max_model_len=128,
    max_num_seqs=8,
    max_queued_requests=None,
    block_size=4,
    plugins={},
    config={},
)
IDLE_S = Heartbeat.unshared().period_s
"""How long a loop waits that has nothing to do."""
Kind = TypeVar("Kind", bound=FromEngine)


def no_grammars(spec: GrammarSpec) -> LogitsConstraint:
    raise RequestError(f"no grammars here, got {spec.text!r}")


def stub_served(
    harness: EngineHarness, compile_spec: Callable[[GrammarSpec], LogitsConstraint] = no_grammars
) -> ServedEngine:
    factory = RequestFactory(harness.engine.limits, (), 0, harness.clock)
    return ServedEngine(harness.engine, factory, GrammarThread(compile_spec), INFO)


def submission(
    request_id: str, prompt: Iterable[int] = (1, 2, 3), *, max_tokens: int = 4, n: int = 1, grammar: str | None = None
) -> Submit:
    params = SamplingParams(max_tokens=max_tokens, n=n, ignore_eos=True)
    spec = None if grammar is None else GrammarSpec("regex", grammar)
    return Submit(request_id, list(prompt), params, RequestTraits(), spec)


@final
class ScriptedLink(EngineLink):
    """Turn by turn, what front ends say; when the script is over the loop goes on until it is idle, and then stops.

    Attributes:
        sent: (turn, front end, message), in order.
        timeouts: what the loop was ready to wait, turn by turn.
    """

    def __init__(self, *turns: list[tuple[str, ToEngine]], on_turn: Callable[[int], None] = lambda turn: None) -> None:
        """`on_turn` is called at the beginning of each turn, with its number, from 1."""
        self._on_turn = on_turn
        self.sent: list[tuple[int, str, FromEngine]] = []
        self.timeouts: list[float] = []
        self.is_closed = False
        self._turns = list(turns)

    def receive(self, timeout_s: float) -> list[tuple[str, ToEngine]]:
        self.timeouts.append(timeout_s)
        self._on_turn(len(self.timeouts))
        assert len(self.timeouts) < 1000, "the loop does not end"
        if self._turns:
            return self._turns.pop(0)
        if timeout_s >= IDLE_S:
            return [("", Stop())]
        # What the loop waits for meanwhile happens in another thread.
        time.sleep(timeout_s)
        return []

    def send(self, front_end: str, message: FromEngine) -> None:
        self.sent.append((len(self.timeouts), front_end, message))

    def close(self) -> None:
        self.is_closed = True


def of_kind(link: ScriptedLink, kind: type[Kind], front_end: str | None = None) -> list[Kind]:
    """All messages of a kind, in order, to one front end or to any."""
    return [message for _, name, message in link.sent if isinstance(message, kind) and front_end in (None, name)]


@final
class FakeFrontEndLink(FrontEndLink):
    """A link without an engine: the test hands messages over with `take`."""

    def __init__(self) -> None:
        self.sent: list[ToEngine] = []
        self.is_closed = False
        self.take: Callable[[FromEngine], None] = lambda message: None

    def start(self, on_message: Callable[[FromEngine], None]) -> None:
        self.take = on_message

    def send(self, message: ToEngine) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.is_closed = True
