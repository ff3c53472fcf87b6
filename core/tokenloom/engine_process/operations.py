"""What front ends can ask of an engine beside requests: the operations of `Call`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from tokenloom.engine import Engine
from tokenloom.engine_process.served_engine import ServedEngine
from tokenloom.errors import RequestError

__all__ = ["Operations", "engine_operations"]

Operations = dict[str, Callable[[Mapping[str, Any]], Any]]
"""Name -> function of the arguments; it returns plain data. A TokenloomError reaches the caller."""

_MAX_CELLS = 4096
"""Blocks that `kv_map` shows one by one; of a larger pool, a cell stands for several."""


def engine_operations(served: ServedEngine) -> Operations:
    """The operations that every engine has.

    ping: "pong"; that the loop turns.
    stats: the counters of `EngineStats`, `running` and `waiting` requests, and `kv_usage`, blocks by state.
    kv_map: a string for each pool of KV memory, see `BlockPool.map`; the argument max_cells bounds its length.
    reset_prefix_cache: evicts every cached block that no request uses; how many.
    """
    engine = served.engine
    return {
        "ping": lambda _: "pong",
        "stats": lambda _: _stats(engine),
        "kv_map": lambda arguments: _kv_map(engine, arguments),
        "reset_prefix_cache": lambda _: engine.reset_prefix_cache(),
    }


def _stats(engine: Engine) -> dict[str, Any]:
    return {
        **asdict(engine.stats),
        "running": engine.num_running,
        "waiting": engine.num_waiting,
        "kv_usage": engine.kv_usage(),
    }


def _kv_map(engine: Engine, arguments: Mapping[str, Any]) -> list[str]:
    max_cells = arguments.get("max_cells", _MAX_CELLS)
    if not isinstance(max_cells, int) or max_cells < 1:
        raise RequestError(f"max_cells={max_cells!r} must be a whole number >= 1", "max_cells")
    return engine.kv_map(max_cells)
