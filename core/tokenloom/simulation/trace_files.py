"""Readers of request traces: Azure CSV, Mooncake JSON lines, and workload files of `tokenloom bench`.

Sources: AzurePublicDataset, "LLM inference traces 2023" (TIMESTAMP,ContextTokens,GeneratedTokens); Qin et al.,
"Mooncake: A KVCache-centric Disaggregated Architecture for LLM Serving" (2024), whose traces hold timestamp (ms),
input_length, output_length and hash_ids: the ids of the prompt's blocks of 512 tokens, each standing for all before it.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tokenloom.bench.workload import read_workload
from tokenloom.errors import ConfigError
from tokenloom.simulation.timed_request import MOST_TOKENS, TimedRequest
from tokenloom.simulation.workload_lines import WorkloadLine, parse_line, read_lines

__all__ = ["MOONCAKE_BLOCK_TOKENS", "BlockChain", "read_block_chains", "read_requests", "spread_buckets"]

MOONCAKE_BLOCK_TOKENS = 512

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class BlockChain:
    """The blocks of one prompt, from its start, and when it came (seconds)."""

    arrival_s: float
    block_ids: tuple[int, ...]


class _ChainLine(WorkloadLine):
    timestamp: Annotated[float, Field(ge=0.0)] = 0.0
    hash_ids: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...]


class _MooncakeLine(_ChainLine):
    timestamp: Annotated[float, Field(ge=0.0)]
    input_length: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    output_length: Annotated[int, Field(ge=1, le=MOST_TOKENS)]


def read_requests(path: Path, *, limit: int | None = None, seed: int = 0) -> list[TimedRequest]:
    """Reads a workload in order of arrival; the first request arrives at 0.

    Args:
        path: .csv (Azure), .jsonl (Mooncake), or .json (`tokenloom bench`; all arrive at once).
        limit: only the first so many requests.
        seed: places the arrivals of a Mooncake trace within their bucket.

    Raises:
        ConfigError: the file cannot be read; names the file, the line and what is wrong.
    """
    readers = {".csv": _azure, ".jsonl": _mooncake, ".json": _workload}
    if path.suffix not in readers:
        raise ConfigError(
            f"workload={path}: its name must end in .csv (Azure), .jsonl (Mooncake) or .json (a list of "
            '{"prompt": [ids], "max_tokens": n})'
        )
    requests = sorted(islice(readers[path.suffix](path), limit), key=lambda request: request.arrival_s)
    if not requests:
        raise ConfigError(f"workload={path} has no requests")
    if path.suffix == ".jsonl":
        requests = spread_buckets(requests, seed)
    first_s = requests[0].arrival_s
    return [replace(request, arrival_s=request.arrival_s - first_s) for request in requests]


def read_block_chains(path: Path, *, limit: int | None = None) -> list[BlockChain]:
    """Reads the `hash_ids` (and the timestamps, if there are any) of a Mooncake trace, in the order of the file.

    Raises:
        ConfigError: the file cannot be read, or an id does not follow the same id everywhere; names the file, the line
            and what is wrong.
    """
    if path.suffix != ".jsonl":
        raise ConfigError(f"workload={path}: a replay of the cache needs hash_ids; name a Mooncake trace (.jsonl)")
    chains = list(islice(_chains(path), limit))
    if not chains:
        raise ConfigError(f"workload={path} has no requests")
    return chains


def spread_buckets(requests: Sequence[TimedRequest], seed: int) -> list[TimedRequest]:
    """Spreads requests that bear one timestamp over the time until the next: uniformly at random, order kept.

    A timestamp stands for a bucket as wide as most gaps between timestamps. A trace without repeated timestamps is left
    as it is.
    """
    counts = Counter(request.arrival_s for request in requests)
    times = sorted(counts)
    if len(times) == len(requests) or len(times) < 2:
        return list(requests)
    gaps = {earlier: later - earlier for earlier, later in pairwise(times)}
    width_s = Counter(round(gap, 3) for gap in gaps.values()).most_common(1)[0][0]
    draw = random.Random(seed)
    spread = [
        time_s + offset
        for time_s in times
        for offset in sorted(draw.random() * min(width_s, gaps.get(time_s, width_s)) for _ in range(counts[time_s]))
    ]
    return [replace(request, arrival_s=time_s) for request, time_s in zip(requests, spread, strict=True)]


def _chains(path: Path) -> Iterator[BlockChain]:
    # What stands before each id, and the line that says so first. One that follows two others is no id of a prefix:
    # whatever a cache found under it, its ratio of hits would mean nothing.
    known: dict[int, tuple[int | None, int]] = {}
    for number, text in read_lines(path):
        line = parse_line(path, number, text, _ChainLine)
        before: int | None = None
        for block_id in line.hash_ids:
            first, first_number = known.setdefault(block_id, (before, number))
            if first != before:
                raise ConfigError(
                    f"workload={path}: line {number}: hash_ids: {block_id} {_place(before)} here, but {_place(first)} "
                    f"on line {first_number}; an id stands for a block and all before it, so it follows the same id "
                    "everywhere: make each from the block's tokens and the id before it"
                )
            before = block_id
        yield BlockChain(line.timestamp / 1000, line.hash_ids)


def _place(before: int | None) -> str:
    return "comes first" if before is None else f"follows {before}"


def _azure(path: Path) -> Iterator[TimedRequest]:
    lines = read_lines(path)
    if _cells(path, *next(lines, (1, ""))) != list(_AZURE_COLUMNS):
        raise ConfigError(f"workload={path}: line 1: expected the columns {','.join(_AZURE_COLUMNS)}")
    start: datetime | None = None
    for number, text in lines:
        cells = _cells(path, number, text)
        if len(cells) != len(_AZURE_COLUMNS):
            raise ConfigError(
                f"workload={path}: line {number}: expected a value for each of {','.join(_AZURE_COLUMNS)}, got "
                f"{text.strip()!r:.80}"
            )
        try:
            time = datetime.fromisoformat(cells[0])
            # Two clocks in one file would be a fault of the file, too.
            start = time if start is None else start
            arrival_s = (time - start).total_seconds()
        except (ValueError, TypeError) as error:
            raise ConfigError(f"workload={path}: line {number}: {_AZURE_COLUMNS[0]}: {error}") from error
        num_prompt, num_output = (
            _length(path, number, name, cell) for name, cell in zip(_AZURE_COLUMNS[1:], cells[1:], strict=True)
        )
        yield TimedRequest(arrival_s, num_prompt, num_output)


def _cells(path: Path, number: int, text: str) -> list[str]:
    try:
        return next(csv.reader([text]), [])
    except csv.Error as error:
        raise ConfigError(f"workload={path}: line {number}: {error}") from error


def _length(path: Path, number: int, name: str, cell: str) -> int:
    word = cell.strip()
    # Longer numbers are too large in any case, and Python refuses to read very long ones.
    length = int(word) if word.isascii() and word.isdigit() and len(word) <= len(str(MOST_TOKENS)) else 0
    if not 1 <= length <= MOST_TOKENS:
        raise ConfigError(
            f"workload={path}: line {number}: {name} must be a whole number from 1 to {MOST_TOKENS}, got {cell!r:.40}"
        )
    return length


def _mooncake(path: Path) -> Iterator[TimedRequest]:
    for number, text in read_lines(path):
        line = parse_line(path, number, text, _MooncakeLine)
        yield TimedRequest(
            line.timestamp / 1000, line.input_length, line.output_length, line.hash_ids, MOONCAKE_BLOCK_TOKENS
        )


def _workload(path: Path) -> Iterator[TimedRequest]:
    for item in read_workload(path):
        yield TimedRequest(0.0, len(item.prompt), item.max_tokens, token_ids=tuple(item.prompt))
