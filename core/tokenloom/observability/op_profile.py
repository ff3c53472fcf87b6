"""What torch does inside steps: its profiler's events, with decoder layers named, on the clock of a timeline."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from tokenloom.clock import Clock, MonotonicClock
from tokenloom.models.decoder_layer import DecoderLayer

__all__ = ["OpProfile"]

_PARTS = ("attention_part", "ffn_part")
_US_PER_S = 1e6


@final
class OpProfile:
    """Records between `start` and `stop`; slows steps down. Its `annotate` is for `StepTimeline`."""

    def __init__(self, clock: Clock | None = None) -> None:
        """`clock` is that of the timeline."""
        self._clock = MonotonicClock() if clock is None else clock
        self._mark_s: dict[str, float] = {}
        self._running = ExitStack()
        self._profile: profile | None = None

    def annotate(self, name: str) -> AbstractContextManager[object]:
        """Marks what runs inside, if it is recording."""
        if self._profile is None:
            return ExitStack()
        self._mark_s[name] = self._clock.now()
        return record_function(name)

    def start(self) -> None:
        """Begins to record."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._running.enter_context(_named_layers())
        self._profile = self._running.enter_context(profile(activities=activities))

    def stop(self) -> list[dict[str, Any]]:
        """Ends the recording; returns the events of a Chrome trace, times in microseconds on the clock."""
        assert self._profile is not None, "stop() without start()"
        self._running.close()
        recorded, self._profile = self._profile, None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ops.json"
            recorded.export_chrome_trace(str(path))
            events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        return list(self._placed(events))

    def _placed(self, events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Torch counts from a moment of its own; the steps that both clocks saw tell the distance."""
        offsets_us = [
            self._mark_s[event["name"]] * _US_PER_S - event["ts"]
            for event in events
            if event.get("name") in self._mark_s and event.get("ph") == "X"
        ]
        if not offsets_us:
            return
        # The first mark of all takes its time.
        offset_us = median(offsets_us)
        for event in events:
            yield {**event, "ts": event["ts"] + offset_us} if "ts" in event else event


@contextmanager
def _named_layers() -> Iterator[None]:
    """Lets every decoder layer say which one runs, for as long as this is open."""
    originals = [
        (layer, part, vars(layer)[part])
        for layer in DecoderLayer.__subclasses__()
        for part in _PARTS
        if part in vars(layer)
    ]
    for layer, part, original in originals:
        setattr(layer, part, _named(original, part))
    try:
        yield
    finally:
        for layer, part, original in originals:
            setattr(layer, part, original)


def _named(original: Callable[..., Any], part: str) -> Callable[..., Any]:
    def call(self: DecoderLayer, *args: Any) -> Any:
        with record_function(f"layer {self.facts.layer_index} {part.removesuffix('_part')}"):
            return original(self, *args)

    return call
