"""How long engines take from the spawn of a process to their first token, timed the same way for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from peer_process import PeerProcess, PeerSpec
from repetitions import spread

__all__ = ["measure_starts"]


def measure_starts(
    specs: Sequence[PeerSpec],
    settings: dict[str, Any],
    item: dict[str, Any],
    repetitions: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Starts every engine in turn, once untimed: that brings files into memory and fills the caches of engines.

    Args:
        specs: the engines; ratios are to the first.
        settings: what workers are told, see `peers/peer_worker.py`.
        item: the request, of which the first token is asked for.
        repetitions: timed starts of each engine.
        say: told about each start.
    """
    request = {**item, "max_tokens": 1}
    starts: list[list[Start]] = [[] for _ in specs]
    for repetition in range(repetitions + 1):
        for spec, own in zip(specs, starts):
            own.append(Start(spec, settings, request))
            say(f"start {repetition}/{repetitions} {spec.label}: first token after {own[-1].first_token_s:.2f} s")
    expected = starts[0][0].token_id
    first = [start.first_token_s for start in starts[0][1:]]
    return {
        "num_prompt_tokens": len(item["prompt"]),
        "rows": [
            {
                "label": spec.label,
                "engine": own[0].engine,
                "untimed_s": own[0].first_token_s,
                "first_token_s": [start.first_token_s for start in own[1:]],
                "load_s": [start.load_s for start in own[1:]],
                "is_first_token_equal": all(start.token_id == expected for start in own),
                "time_ratio": spread([start.first_token_s / ours for start, ours in zip(own[1:], first)]),
            }
            for spec, own in zip(specs, starts)
        ],
    }


class Start:
    """One start of a fresh process: interpreter, imports, loading, and the request, read and answered.

    Attributes:
        first_token_s: from the spawn until the token is in this process.
        load_s: the part of it that the engine's own loading took, its imports included.
        token_id: the token.
        engine: name and version.
    """

    def __init__(self, spec: PeerSpec, settings: dict[str, Any], request: dict[str, Any]) -> None:
        start_s = time.perf_counter()
        peer = PeerProcess(spec, settings)
        try:
            answer = peer.run([request], [])
            self.first_token_s = time.perf_counter() - start_s
        finally:
            peer.close()
        self.load_s = peer.load_s
        self.token_id = answer.token_ids[0][0]
        self.engine = f"{peer.name} {peer.version}"
