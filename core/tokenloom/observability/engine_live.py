"""What an engine does right now, for somebody who watches it: its last steps, the last minute, its KV blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from tokenloom.bench.latency import percentiles
from tokenloom.clock import Clock, MonotonicClock
from tokenloom.engine_output import EngineOutput
from tokenloom.engine_process.loop_observer import LoopObserver
from tokenloom.engine_process.messages import Refused
from tokenloom.engine_process.operations import Operations
from tokenloom.errors import PluginContractError
from tokenloom.request import FinishReason, Request

if TYPE_CHECKING:
    from tokenloom.engine import Engine

__all__ = ["EngineLive"]

_WINDOW_S = 60
_RATE_S = 3
"""Rates are of so many whole seconds: long enough to be calm, short enough to be now."""
_MAX_STEPS = 120
_MAX_SAMPLES = 4096
"""Latencies that are kept; of a busier minute, the last ones."""
_MAX_CELLS = 2048
"""Letters of the KV maps, all pools together."""
_MIN_AGE_S = 0.2
_AGE_PER_COST = 100.0
"""An answer stands for so many times the time that making it took: that takes at most 1 % of the engine's time, however
many watch."""


@dataclass(slots=True)
class _Second:
    """What happened within one second of the clock. Tokens of `prefix_*` are those of prompts that began."""

    number: int
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_preemptions: int = 0
    num_finished: int = 0


@final
class _Samples:
    """Latencies of the last minute."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=_MAX_SAMPLES)

    def add(self, now_s: float, value_s: float) -> None:
        self._values.append((now_s, value_s))

    def summary(self, now_s: float) -> dict[str, float | int | None]:
        values = self._values
        while values and values[0][0] <= now_s - _WINDOW_S:
            values.popleft()
        found = percentiles([value for _, value in values])
        return {name: found[name] for name in ("count", "p50", "p99")}


@final
class EngineLive(LoopObserver):
    """Remembers the last steps and the last minute. Lives in the thread that steps the engine."""

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._clock = MonotonicClock() if clock is None else clock
        self._unbegun: dict[str, Request] = {}
        self._begun: dict[str, Request] = {}
        self._steps: deque[tuple[int, int, int, int, int, float]] = deque(maxlen=_MAX_STEPS)
        self._seconds: deque[_Second] = deque([_Second(int(self._clock.now()))], maxlen=_WINDOW_S + 1)
        self._ttft, self._tpot, self._queue = _Samples(), _Samples(), _Samples()
        stats = engine.stats
        self._num_steps, self._num_computed = stats.num_steps, stats.num_computed_tokens
        self._num_drafts, self._num_preemptions = stats.num_draft_tokens, stats.num_preemptions
        self._num_finished = stats.num_finished
        self._times_s = sum(stats.times_s.values())
        self._answer: dict[str, Any] = {}
        self._answer_ends_s = float("-inf")

    def accepted(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._unbegun[request.request_id] = request

    def refused(self, refused: Refused) -> None:
        pass

    def stepped(self, outputs: Sequence[EngineOutput]) -> None:
        now_s, stats = self._clock.now(), self._engine.stats
        second = self._second(now_s)
        counts = [len(output.token_ids) for output in outputs]
        second.num_output_tokens += sum(counts)
        num_begun = self._begin_all(outputs, now_s, second) if self._unbegun else 0
        num_ended = self._end_all(outputs, now_s, second) if stats.num_finished != self._num_finished else 0
        if stats.num_steps == self._num_steps:
            return
        num_decoding = len(counts) - counts.count(0) - num_begun
        num_drafts = stats.num_draft_tokens - self._num_drafts
        # A row that goes on decoding has its last token and its drafts to compute; all else is of a prompt, or again.
        num_prompt = stats.num_computed_tokens - self._num_computed - num_decoding - num_drafts
        times_s = sum(stats.times_s.values())
        num_requests = self._engine.num_running + num_ended
        self._steps.append(
            (stats.num_steps, num_prompt, num_decoding, num_drafts, num_requests, times_s - self._times_s)
        )
        second.num_prompt_tokens += num_prompt
        second.num_preemptions += stats.num_preemptions - self._num_preemptions
        self._num_steps, self._num_computed, self._times_s = stats.num_steps, stats.num_computed_tokens, times_s
        self._num_drafts, self._num_preemptions = stats.num_draft_tokens, stats.num_preemptions

    def ended(self, output: EngineOutput) -> None:
        now_s = self._clock.now()
        self._end(output, now_s, self._second(now_s))

    def plan_failed(self, error: PluginContractError) -> None:
        pass

    def operations(self) -> Operations:
        """live: see `now`."""
        return {"live": lambda _: self.now()}

    def now(self) -> dict[str, Any]:
        """What to show, as plain data; up to a fraction of a second old.

        running, waiting: requests. num_preemptions: since the engine began; num_steps, too.
        output_tokens_per_s, prompt_tokens_per_s: of the last seconds; prompt tokens that had to be computed.
        output_tokens_by_s: of each whole second of the last minute, the latest one last.
        ttft_s, tpot_s, queue_s: count, p50 and p99 of the last minute; None where nothing was measured.
        minute: what the last minute had of requests finished, preemptions, and prompt tokens looked up in the prefix
            cache (prefix_queries) and found there (prefix_hits).
        steps: of each of the last steps its number; tokens of prompts, of decoding, and drafts; requests; seconds.
        kv: `usage`, blocks by state; `num_shared` active blocks with several holders; `maps`, see `BlockPool.map`; and
            `blocks_per_cell` of each map.
        """
        now_s = self._clock.now()
        if now_s >= self._answer_ends_s:
            self._answer = self._look(now_s)
            cost_s = self._clock.now() - now_s
            self._answer_ends_s = now_s + max(_MIN_AGE_S, _AGE_PER_COST * cost_s)
        return self._answer

    def _second(self, now_s: float) -> _Second:
        last, number = self._seconds[-1], int(now_s)
        if last.number == number:
            return last
        self._seconds.append(_Second(number))
        return self._seconds[-1]

    def _begin_all(self, outputs: Iterable[EngineOutput], now_s: float, second: _Second) -> int:
        first = [output for output in outputs if output.token_ids and output.request_id in self._unbegun]
        for output in first:
            self._begin(output, now_s, second)
        return len(first)

    def _end_all(self, outputs: Iterable[EngineOutput], now_s: float, second: _Second) -> int:
        self._num_finished = self._engine.stats.num_finished
        last = [output for output in outputs if output.finish_reason is not None]
        for output in last:
            self._end(output, now_s, second)
        return len(last)

    def _begin(self, output: EngineOutput, now_s: float, second: _Second) -> None:
        request = self._begun[output.request_id] = self._unbegun.pop(output.request_id)
        times = output.times
        assert times.first_scheduled_s is not None, f"{output.request_id} has tokens without a step"
        self._ttft.add(now_s, output.landed_s - times.arrival_s)
        self._queue.add(now_s, times.first_scheduled_s - times.arrival_s)
        second.prefix_queries += request.num_prompt_tokens
        second.prefix_hits += output.num_cached_tokens

    def _end(self, output: EngineOutput, now_s: float, second: _Second) -> None:
        second.num_finished += 1
        self._unbegun.pop(output.request_id, None)
        request, times = self._begun.pop(output.request_id, None), output.times
        if request is None or output.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        tpot_s = times.tpot_s(request.num_output_tokens)
        if tpot_s is not None:
            self._tpot.add(now_s, tpot_s)

    # ---- what to show ----

    def _look(self, now_s: float) -> dict[str, Any]:
        engine, number = self._engine, int(now_s)
        recent = [second for second in self._seconds if second.number > number - _WINDOW_S]
        tokens = {second.number: second for second in self._seconds}
        whole = [tokens.get(index) or _Second(index) for index in range(number - _WINDOW_S, number)]
        return {
            "num_steps": engine.stats.num_steps,
            "running": engine.num_running,
            "waiting": engine.num_waiting,
            "num_preemptions": engine.stats.num_preemptions,
            "output_tokens_per_s": sum(second.num_output_tokens for second in whole[-_RATE_S:]) / _RATE_S,
            "prompt_tokens_per_s": sum(second.num_prompt_tokens for second in whole[-_RATE_S:]) / _RATE_S,
            "output_tokens_by_s": [second.num_output_tokens for second in whole],
            "ttft_s": self._ttft.summary(now_s),
            "tpot_s": self._tpot.summary(now_s),
            "queue_s": self._queue.summary(now_s),
            "minute": {
                "num_finished": sum(second.num_finished for second in recent),
                "num_preemptions": sum(second.num_preemptions for second in recent),
                "prefix_queries": sum(second.prefix_queries for second in recent),
                "prefix_hits": sum(second.prefix_hits for second in recent),
            },
            "steps": list(self._steps),
            "kv": self._kv(),
        }

    def _kv(self) -> dict[str, Any]:
        engine = self._engine
        usage = engine.kv_usage()
        num_blocks = sum(usage.values())
        maps = whole = engine.kv_map(num_blocks)
        if num_blocks > _MAX_CELLS:
            maps = engine.kv_map(max(1, _MAX_CELLS // len(whole)))
        return {
            "usage": usage,
            "num_shared": sum(blocks.count("s") for blocks in whole),
            "maps": maps,
            "blocks_per_cell": [-(-len(blocks) // len(cells)) for blocks, cells in zip(whole, maps, strict=True)],
        }
